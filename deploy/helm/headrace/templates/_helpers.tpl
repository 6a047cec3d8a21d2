{{- define "headrace.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-headrace" .Release.Name) (contains "headrace" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* (list $ "ingest"): the labels by which a component's pods are found, the same for ever. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* (list $ "ingest"): name and labels of what belongs to a component. */}}
{{- define "headrace.metadata" -}}
name: {{ include "headrace.fullname" (index . 0) }}-{{ index . 1 }}
labels: {{- include "headrace.labels" . | nindent 2 }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{- define "headrace.image" -}}
{{ (index . 0).Values.image.registry }}/{{ index . 1 }}:{{ (index . 0).Values.image.tag }}
{{- end }}

{{/* Changes with the release of the images: the registry of this release has a Service of this name. */}}
{{- define "headrace.thisRegistry" -}}
{{ include "headrace.fullname" . }}-registry-{{ include "headrace.release" . }}
{{- end }}
{{- define "headrace.release" -}}
{{ include "headrace.image" (list . "registry") | sha256sum | trunc 8 }}
{{- end }}

{{- define "headrace.accessSecret" -}}
{{ .Values.access.existingSecret | default (printf "%s-access" (include "headrace.fullname" .)) }}
{{- end }}

{{/* Every pod's: no privileges, no token of the API server, and no variables for each Service, which would look like
     settings (REGISTRY_PORT) and stop the start. */}}
{{- define "headrace.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A user's number: the pod's security context. */}}
{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* (list $ "ingest"): where its pods may run, and that replicas prefer machines apart. A third item: what their
     component is called, where the values are of another. */}}
{{- define "headrace.placement" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
terminationGracePeriodSeconds: {{ add $values.terminationGracePeriodSeconds (index . 0).Values.drainSeconds }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "headrace.selector" (list (index . 0) (last .)) | nindent 8 }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headrace.scheme" -}}
{{ if .Values.tls.secret }}https{{ else }}http{{ end }}
{{- end }}

{{/* (list $ "ingest" "registry"): a container's probes. The start waits for every condition, or, where a pod may
     stand by, for its door; later a condition that all replicas share takes none of them out
     (docs/guide/kubernetes.md). */}}
{{- define "headrace.probes" -}}
{{- $scheme := include "headrace.scheme" (index . 0) | upper -}}
{{- $standsBy := and (eq (index . 1) "registry") (gt (int (index . 0).Values.registry.replicas) 1) -}}
startupProbe:
  httpGet: {path: {{ if $standsBy }}/healthz{{ else }}/readyz{{ end }}, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 300
readinessProbe:
  httpGet: {path: {{ with index . 2 }}"/readyz?exclude={{ . }}"{{ else }}/readyz{{ end }}, port: http, scheme: {{ $scheme }}}
  periodSeconds: {{ ternary 1 2 $standsBy }}
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
lifecycle:
  preStop: {sleep: {seconds: {{ (index . 0).Values.drainSeconds }}}}
{{- end }}

{{/* (list $ 8601 8600): ports of a Service; (list 8601 8600): of its container. */}}
{{- define "headrace.servicePorts" -}}
- {name: http, port: {{ index . 1 }}, targetPort: http, appProtocol: {{ include "headrace.scheme" (index . 0) }}}
- {name: grpc, port: {{ index . 2 }}, targetPort: grpc, appProtocol: {{ include "headrace.grpcProtocol" (index . 0) }}}
{{- end }}
{{- define "headrace.grpcProtocol" -}}
{{ if .Values.tls.secret }}https{{ else }}kubernetes.io/h2c{{ end }}
{{- end }}
{{- define "headrace.containerPorts" -}}
- {name: http, containerPort: {{ index . 0 }}}
- {name: grpc, containerPort: {{ index . 1 }}}
{{- end }}

{{/* (list $ "ingest"): the variables that every service has. */}}
{{- define "headrace.environment" -}}
{{- $root := index . 0 }}{{ $service := index . 1 }}{{ $prefix := upper $service }}
{{- $name := printf "%s-%s" (include "headrace.fullname" $root) $service }}
- {name: OMP_NUM_THREADS, value: "1"}
- {name: OPENBLAS_NUM_THREADS, value: "1"}
- {name: TF_CPP_MIN_LOG_LEVEL, value: "2"}
{{- if $root.Values.access.anonymous }}
- {name: ALLOW_ANONYMOUS, value: "yes"}
{{- else }}
- {name: ACCESS_FILE, value: /access/access.yaml}
- {name: SERVICE_TOKEN_FILE, value: /access/token}
{{- end }}
{{- if $root.Values.tls.secret }}
- {name: TLS_CERTIFICATE_FILE, value: /tls/certificate.pem}
- {name: TLS_KEY_FILE, value: /tls/key.pem}
- {name: TLS_CA_FILE, value: /tls/ca.pem}
{{- end }}
{{- with $root.Values.traceEndpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
- {name: {{ $prefix }}_HOST, value: 0.0.0.0}
- name: {{ $prefix }}_ALLOWED_HOSTS
  value: {{ $name }} {{ $name }}.{{ $root.Release.Namespace }} {{ $name }}.{{ $root.Release.Namespace }}.svc {{ $name }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
    {{- range $root.Values.allowedHosts }} {{ . }}{{ end }}
- {name: {{ $prefix }}_LOG_FORMAT, value: {{ $root.Values.logFormat }}}
- {name: {{ $prefix }}_TRACE_SAMPLE, value: {{ $root.Values.traceSample | quote }}}
{{- if ne $service "registry" }}
- {name: {{ $prefix }}_REGISTRY_ADDRESS, value: "{{ include "headrace.fullname" $root }}-registry:8700"}
{{- end }}
{{- if has $service (list "ingest" "trainer") }}
- {name: {{ $prefix }}_EVENT_LOG, value: "kafka:{{ include "headrace.kafka" $root }}"}
{{- end }}
{{- if has $service (list "ingest" "serving") }}
- name: {{ $prefix }}_REDIS_URL
  {{- if $root.Values.redis.urlSecret.name }}
  valueFrom: {secretKeyRef: {name: {{ $root.Values.redis.urlSecret.name }}, key: {{ $root.Values.redis.urlSecret.key }}}}
  {{- else }}
  value: {{ include "headrace.redis" $root | quote }}
  {{- end }}
{{- end }}
{{- range $key, $value := (index $root.Values $service).settings }}
- {name: {{ $prefix }}_{{ $key }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "headrace.kafka" -}}
{{- if .Values.kafka.bundled }}{{ include "headrace.fullname" . }}-kafka:9092{{ else }}{{ join "," .Values.kafka.bootstrapServers }}{{ end }}
{{- end }}
{{- define "headrace.redis" -}}
{{- if .Values.redis.bundled }}redis://{{ include "headrace.fullname" . }}-redis:6379/0{{ else }}{{ .Values.redis.url }}{{ end }}
{{- end }}

{{/* (list $ "ingest"): who may do what, the service's own token and its own key; nothing else of the Secrets. */}}
{{- define "headrace.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if not (index . 0).Values.access.anonymous }}
- {name: access, mountPath: /access, readOnly: true}
{{- end }}
{{- if (index . 0).Values.tls.secret }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end }}
{{- define "headrace.volumes" -}}
- name: tmp
  emptyDir: {medium: Memory}
{{- if not (index . 0).Values.access.anonymous }}
- name: access
  secret:
    secretName: {{ include "headrace.accessSecret" (index . 0) }}
    defaultMode: 0440
    items:
      - {key: access.yaml, path: access.yaml}
      - {key: {{ index . 1 }}, path: token}
{{- end }}
{{- with (index . 0).Values.tls.secret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - {key: ca.pem, path: ca.pem}
      - {key: {{ index $ 1 }}.pem, path: certificate.pem}
      - {key: {{ index $ 1 }}.key, path: key.pem}
{{- end }}
{{- end }}

{{/* Waits for the registry of this release of the images, so that an upgrade begins with the registry. Where a Service has
     no pod yet, some networks drop the connection's packets: an attempt has a limit. */}}
{{- define "headrace.afterRegistry" -}}
- name: after-registry
  image: {{ include "headrace.image" . }}
  imagePullPolicy: {{ (index . 0).Values.image.pullPolicy }}
  command: [bash, -c, "trap 'exit 1' TERM; until timeout 2 bash -c 'exec 3<>/dev/tcp/{{ include "headrace.thisRegistry" (index . 0) }}/8700'; do sleep 1; done 2>/dev/null"]
  securityContext: {{- include "headrace.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
{{- end }}

{{/* (list $ "ingest" 8601 8600): the Service of a component's doors. */}}
{{- define "headrace.service" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "headrace.metadata" . | nindent 2 }}
  {{- with $values.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $values.service.type }}
  selector: {{- include "headrace.selector" . | nindent 4 }}
  ports: {{- include "headrace.servicePorts" (list (index . 0) (index . 2) (index . 3)) | nindent 4 }}
{{- end }}

{{/* (list $ "serving" "Deployment" isScaled): the number of replicas. What an autoscaler scales keeps the number that it has:
     without a number Kubernetes would take 1 when a release that runs gets its autoscaler. A first install has none. */}}
{{- define "headrace.replicas" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}
{{- if not (index . 3) -}}
replicas: {{ (index $root.Values $component).replicas }}
{{- else -}}
{{- with lookup "apps/v1" (index . 2) $root.Release.Namespace (printf "%s-%s" (include "headrace.fullname" $root) $component) -}}
replicas: {{ .spec.replicas }}
{{- end }}
{{- end }}
{{- end }}

{{/* (list $ persistence "data"): a claim of a StatefulSet's pods. */}}
{{- define "headrace.claim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: data}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{/* (list $ "serving" "Deployment" values triggers): a KEDA ScaledObject by queries to Prometheus. */}}
{{- define "headrace.scaledObject" -}}
{{- $root := index . 0 }}{{ $values := index . 3 }}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{- include "headrace.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: {{ index . 2 }}, name: {{ include "headrace.fullname" $root }}-{{ index . 1 }}}
  minReplicaCount: {{ $values.minReplicas }}
  maxReplicaCount: {{ $values.maxReplicas }}
  # Without Prometheus the number of replicas stays.
  fallback: {failureThreshold: 3, replicas: {{ $values.minReplicas }}, behavior: currentReplicas}
  triggers:
    {{- range index . 4 }}
    - type: prometheus
      metricType: {{ .type }}
      metadata:
        serverAddress: {{ $root.Values.keda.prometheus | quote }}
        query: {{ .query | quote }}
        threshold: {{ .threshold | quote }}
    {{- end }}
{{- end }}
