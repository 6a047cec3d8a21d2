"""The audit log is exported in parts, and a copy of it verified without a platform."""

import json
from pathlib import Path

from common.registry.audit import EMPTY, head_of, line_after
from headrace.tests.answering_server import Run, Server


def log(count: int) -> list[str]:
    lines, head = [], EMPTY
    for number in range(count):
        lines.append(line_after(head, {"by": "ann", "action": "set_alias", "version": number}))
        head = head_of(lines[-1])
    return lines


def test_the_log_is_written_to_a_new_file_and_found_whole(server: Server, run: Run, tmp_path: Path) -> None:
    lines, file = log(5), tmp_path / "audit.jsonl"
    newest = head_of(lines[-1])
    server.will_answer(200, "".join(f"{line}\n" for line in lines[:3]).encode())
    server.will_answer(403, {"error": {"kind": "PermissionDenied", "message": "no longer an operator"}})
    assert run("audit", "export", str(file)).exit_code != 0
    assert not [*tmp_path.glob("*audit*")], "a log that broke off is no log"
    server.requests.clear()
    for part in (lines[:3], lines[3:], []):
        server.will_answer(200, "".join(f"{line}\n" for line in part).encode())
    told = run("audit", "export", str(file))
    assert told.output == f"5 entries in {file}; the newest is 5, digest {newest.digest}\n"
    assert [request.path for request in server.requests] == [f"/v1/audit?after={after}" for after in (0, 3, 5)]
    assert file.read_text().splitlines() == lines
    assert run("audit", "export", str(file)).exit_code == 5
    found = run("audit", "verify", str(file), "--json")
    assert json.loads(found.output) == {"sequence": 5, "digest": newest.digest}


def test_a_copy_that_was_tampered_with_is_found_out(run: Run, tmp_path: Path) -> None:
    lines, file = log(5), tmp_path / "audit.jsonl"
    file.write_text("\n".join([lines[0], lines[1].replace("ann", "eve"), *lines[2:]]) + "\n")
    assert "line 2 (entry 2) was changed" in run.refusal("audit", "verify", str(file), status=8)


def test_a_log_that_was_cut_off_or_written_anew_lacks_the_digest_kept_elsewhere(run: Run, tmp_path: Path) -> None:
    lines, file = log(5), tmp_path / "audit.jsonl"
    kept = head_of(lines[-1]).digest
    file.write_text("\n".join(lines) + "\n")
    assert run("audit", "verify", str(file), "--head", kept).exit_code == 0
    file.write_text("\n".join(lines[:4]) + "\n")
    assert run("audit", "verify", str(file)).exit_code == 0
    assert "cut off or written anew" in run.refusal("audit", "verify", str(file), "--head", kept, status=8)


def test_a_part_of_a_log_follows_the_digest_before_it(run: Run, tmp_path: Path) -> None:
    lines, file = log(5), tmp_path / "audit.jsonl"
    file.write_text("\n".join(lines[2:]) + "\n")
    assert run("audit", "verify", str(file)).exit_code == 8
    assert run("audit", "verify", str(file), "--after", head_of(lines[1]).digest).exit_code == 0


def test_the_head_is_shown(server: Server, run: Run) -> None:
    server.will_answer(200, {"sequence": 7, "digest": "d" * 64})
    assert run("audit", "head").output == f"entry 7, digest {'d' * 64}\n"
