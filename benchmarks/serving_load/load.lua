-- POST one fixed body (file $BENCH_BODY) again and again; prints one line of JSON at the end. Times in milliseconds.
local file = io.open(os.getenv("BENCH_BODY"), "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/json"
file:close()
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('JSON {"requests":%d,"seconds":%.4f,"p50":%.3f,"p99":%.3f,"errors":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
