{{/* Labels of every object; the argument is a list: the root, and the name of the part. */}}
{{- define "gpucloud.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/part-of: gpucloud
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- define "gpucloud.metadata" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "gpucloud.labels" . | nindent 2 }}
{{- end }}

{{- define "gpucloud.selector" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end }}

{{- define "gpucloud.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "gpucloud.secretName" -}}
{{ default "gpucloud" .Values.secret.existing }}
{{- end }}

{{- define "gpucloud.databaseCluster" -}}gpucloud-database{{- end }}

{{- define "gpucloud.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Keys of the webhook of ResourceClaims: made once, and kept. */}}
{{- define "gpucloud.devicesKey" -}}
{{- $found := (lookup "v1" "Secret" .Release.Namespace "gpucloud-devices-key") | default dict }}
{{- get (get $found "data" | default dict) "ADMISSION_DEVICES_KEYS" | b64dec | default (randAlphaNum 48 | lower) }}
{{- end }}

{{/* Settings of every process. */}}
{{- define "gpucloud.environment" -}}
envFrom:
  - configMapRef:
      name: gpucloud
  - secretRef:
      name: {{ include "gpucloud.secretName" . }}
  {{- if and .Values.dra.enabled .Values.webhooks.enabled }}
  - secretRef:
      name: gpucloud-devices-key
  {{- end }}
  {{- range .Values.secret.extra }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}

{{/* A number of a values file is a float: 12345678 would become 1.2345678e+07. */}}
{{- define "gpucloud.text" -}}
{{- if kindIs "float64" . }}{{ ternary (printf "%.0f" .) (toString .) (eq (floor .) .) | quote }}{{ else }}{{ toString . | quote }}{{ end }}
{{- end }}

{{/* What CloudNativePG knows about its database. */}}
{{- define "gpucloud.databaseVariable" -}}
{{- if eq .Values.database.mode "cloudNativePG" }}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "gpucloud.databaseCluster" . }}-app
      key: uri
{{- end }}
{{- end }}

{{- define "gpucloud.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* It starts no Python; but a container of a busy node may wait for seconds to start anything. */}}
{{- define "gpucloud.alive" -}}
exec:
  command: [sh, deploy/docker/alive.sh]
timeoutSeconds: 10
{{- end }}

{{/* Replicas go to different nodes where that is possible. */}}
{{- define "gpucloud.spread" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "gpucloud.selector" . | nindent 14 }}
{{- end }}

{{/*
A process of the control plane. The argument is a dict:
  root; part: the key of its values; command: a list, or nothing for the image's own; account;
  replicas: 1 by default; recreate: never two at once; oneReady: only the leader is ready; waits: for the migration; critical: a priority class;
  alive: the name of a port that answers /livez in the scheme of that name;
  env, ports, probes, mounts, volumes: YAML, all optional.
*/}}
{{- define "gpucloud.deployment" -}}
{{- $name := printf "gpucloud-%s" .part -}}
{{- $root := .root -}}
{{- $values := index $root.Values .part -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "gpucloud.metadata" (list $root $name) | nindent 2 }}
spec:
  replicas: {{ default 1 .replicas }}
  {{- if .recreate }}
  strategy:
    type: Recreate
  {{- else if .oneReady }}
  strategy:
    rollingUpdate:
      # The leader is the only one that is ready, so it may go while no new one is ready yet.
      maxUnavailable: 100%
      maxSurge: 1
  {{- end }}
  selector:
    matchLabels:
      {{- include "gpucloud.selector" (list $root $name) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "gpucloud.labels" (list $root $name) | nindent 8 }}
      annotations:
        # Changed settings reach the processes.
        checksum/settings: {{ print (include (print $root.Template.BasePath "/settings.yaml") $root) (toJson $root.Values.database) (toJson $root.Values.redis) (toJson $root.Values.secret) | sha256sum }}
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ .account }}
      # The first process of a container ignores SIGTERM until it has a handler, which Python needs seconds for.
      shareProcessNamespace: true
      {{- if .critical }}
      priorityClassName: system-cluster-critical
      {{- end }}
      securityContext:
        runAsNonRoot: true
        seccompProfile:
          type: RuntimeDefault
      {{- with include "gpucloud.placement" $root }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if gt (int (default 1 .replicas)) 1 }}
      {{- include "gpucloud.spread" (list $root $name) | nindent 6 }}
      {{- end }}
      {{- if .waits }}
      initContainers:
        - name: wait-for-migration
          {{- include "gpucloud.image" $root | nindent 10 }}
          command: [python, manage.py, wait_for_migrations]
          {{- with include "gpucloud.databaseVariable" $root }}
          env:
            {{- . | nindent 12 }}
          {{- end }}
          {{- include "gpucloud.environment" $root | nindent 10 }}
          {{- include "gpucloud.containerSecurity" $root | nindent 10 }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      {{- end }}
      containers:
        - name: {{ .part }}
          {{- include "gpucloud.image" $root | nindent 10 }}
          {{- with .command }}
          command: {{ toJson . }}
          {{- end }}
          {{- with print (include "gpucloud.databaseVariable" $root) "\n" (default "" .env) | trim }}
          env:
            {{- . | nindent 12 }}
          {{- end }}
          {{- include "gpucloud.environment" $root | nindent 10 }}
          {{- with .ports }}
          ports:
            {{- trim . | nindent 12 }}
          {{- end }}
          {{- if .ports }}
          # Five minutes for the start, which is slow on a node that starts many processes at once.
          startupProbe:
            tcpSocket:
              port: {{ (first (fromYamlArray .ports)).name }}
            periodSeconds: 2
            failureThreshold: 150
          livenessProbe:
            {{- with .alive }}
            httpGet:
              path: /livez
              port: {{ . }}
              scheme: {{ upper . }}
            timeoutSeconds: 10
            {{- else }}
            tcpSocket:
              port: {{ (first (fromYamlArray .ports)).name }}
            {{- end }}
            periodSeconds: 10
            failureThreshold: 6
          {{- else }}
          # Without a port: a loop that moves, or waits for a database, touches a file.
          startupProbe:
            {{- include "gpucloud.alive" $root | nindent 12 }}
            periodSeconds: 5
            failureThreshold: 60
          livenessProbe:
            {{- include "gpucloud.alive" $root | nindent 12 }}
            periodSeconds: 20
            failureThreshold: 3
          {{- end }}
          {{- with .probes }}
          {{- trim . | nindent 10 }}
          {{- end }}
          {{- include "gpucloud.containerSecurity" $root | nindent 10 }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            {{- with .mounts }}
            {{- trim . | nindent 12 }}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {}
        {{- with .volumes }}
        {{- trim . | nindent 8 }}
        {{- end }}
{{- end }}

{{/* A draining node takes one of several replicas at a time. */}}
{{- define "gpucloud.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "gpucloud.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "gpucloud.selector" . | nindent 6 }}
{{- end }}

{{- define "gpucloud.agentSettings" -}}
{{- $settings := dict
    "GPUCLOUD_CLUSTER" .Values.agent.cluster
    "GPUCLOUD_SERVER" (default (printf "http://gpucloud.%s" .Release.Namespace) .Values.agent.server)
-}}
{{- range $name, $value := .Values.agent.settings }}
{{- $_ := set $settings $name $value }}
{{- end }}
{{- range $name, $value := $settings }}
{{ $name }}: {{ include "gpucloud.text" $value }}
{{- end }}
{{- end }}
