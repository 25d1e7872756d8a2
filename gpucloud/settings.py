"""Django settings. Everything that differs between installations comes from the environment (`.env.example`)."""

from pathlib import Path

from gpucloud import environment, periodic_tasks

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = environment.required_secret("SECRET_KEY")
# Earlier secret keys: their signatures and hashes stay valid until they are removed.
SECRET_KEY_FALLBACKS = environment.words("SECRET_KEY_FALLBACKS")
DEBUG = environment.flag("DEBUG", default=False)
ALLOWED_HOSTS = environment.words("ALLOWED_HOSTS", "127.0.0.1,localhost")
CSRF_TRUSTED_ORIGINS = environment.words("CSRF_TRUSTED_ORIGINS")
LOG_LEVEL = environment.text("LOG_LEVEL", "INFO").upper()
# Each notebook is at a name of its own below this one (apps/notebooks); empty: notebooks cannot be opened.
NOTEBOOKS_URL = environment.notebooks_url("NOTEBOOKS_URL", ALLOWED_HOSTS, CSRF_TRUSTED_ORIGINS)
# Set where the server is reached by TLS only: cookies are then never sent in the clear.
HTTPS_ONLY = environment.flag("HTTPS_ONLY", default=False)
# ISO 4217. The currency of prices and costs, which are not converted when it changes.
CURRENCY = environment.currency("CURRENCY", "EUR")
REDIS_URL = environment.text("REDIS_URL")
# Separates installations (or test runs) that share one Redis.
REDIS_PREFIX = environment.text("REDIS_PREFIX", "gpucloud")

# Retention of telemetry: raw seconds from agents, and means over ten seconds, a minute, an hour, a day.
TELEMETRY_RAW_HOURS = environment.number("TELEMETRY_RAW_HOURS", 24, least=3)
TELEMETRY_TENS_DAYS = environment.number("TELEMETRY_TENS_DAYS", 3, least=1)
TELEMETRY_MINUTES_DAYS = environment.number("TELEMETRY_MINUTES_DAYS", 35, least=1)
TELEMETRY_HOURS_DAYS = environment.number("TELEMETRY_HOURS_DAYS", 400, least=1)
JOB_OUTPUT_DAYS, JOB_OUTPUT_MIB = map(environment.number, ("JOB_OUTPUT_DAYS", "JOB_OUTPUT_MIB"), (14, 4096))
JOB_FILES_MIB = environment.number("JOB_FILES_MIB", 64)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "apps.quotas",
    "apps.nodes",
    "apps.scheduling",
    "apps.reservations",
    "apps.accounting",
    "apps.suspension",
    "apps.groups",
    "apps.packing",
    "apps.instances",
    "apps.whatif",
    "apps.forecasts",
    "apps.jobs",
    "apps.notices",
    "apps.tunnels",
    "apps.remote",
    "apps.notebooks",
    "apps.demo",
    "apps.clusters",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "gpucloud.api.middleware.count_requests",
    "gpucloud.web.middleware.security_headers",
    "gpucloud.api.middleware.serve_without_slash",
    # Sets Content-Length: without it the server sends responses in chunks.
    "django.middleware.common.CommonMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "gpucloud.web.languages.Languages",
    "gpucloud.web.middleware.page_for_method_not_allowed",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "gpucloud.urls"
ASGI_APPLICATION = "gpucloud.asgi.application"
APPEND_SLASH = False  # every API route is served with and without; a redirect would lose a POST's body
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["django.templatetags.i18n", "gpucloud.web.tags"],
        },
    }
]

DATABASES = {"default": environment.database("DATABASE_URL", pool_size=environment.number("DATABASE_POOL_SIZE", 0))}
# Requests that a server process handles at a time: one per database connection.
REQUEST_THREADS = environment.number("DATABASE_POOL_SIZE", 0) or 16
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "quotas.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
# False: users sign in with the identity provider only; there are no passwords and no invitations.
LOCAL_ACCOUNTS = environment.flag("LOCAL_ACCOUNTS", default=True)
# Links to set a new password work for a day.
PASSWORD_RESET_TIMEOUT = 86400
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "overview"
SESSION_ENGINE = "apps.quotas.sessions"
# Idle timeout: a long meeting and lunch. Absolute lifetime: a working day.
SESSION_COOKIE_AGE = 60 * environment.number("SESSION_IDLE_MINUTES", 120, least=1)
SESSION_LIFETIME_SECONDS = 3600 * environment.number("SESSION_HOURS", 12, least=1)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS_ONLY
# By this prefix, no other host of the domain, such as a notebook's, can have set a cookie of these names (RFC 6265bis).
COOKIE_PREFIX = "__Host-" if HTTPS_ONLY else ""
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = f"{COOKIE_PREFIX}sessionid", f"{COOKIE_PREFIX}csrftoken"
# Health checks come from this machine, past the proxy, and contain no secret. Browsers use HTTPS for a year without
# being redirected; other names of the domain are not included.
SECURE_HSTS_SECONDS = 365 * 86400 if HTTPS_ONLY else 0
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz)$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS_ONLY else None
X_FRAME_OPTIONS = "DENY"

OIDC_ISSUER = environment.issuer("OIDC_ISSUER")
OIDC_CLIENT_ID = environment.text_beside("OIDC_CLIENT_ID", "OIDC_ISSUER", OIDC_ISSUER)
OIDC_CLIENT_SECRET = environment.secret("OIDC_CLIENT_SECRET")
OIDC_SCOPES = environment.words("OIDC_SCOPES", "openid,profile,email")
OIDC_USERNAME_CLAIM = environment.text("OIDC_USERNAME_CLAIM", "preferred_username")
OIDC_GROUPS_CLAIM = environment.text("OIDC_GROUPS_CLAIM", "groups")
OIDC_GROUP_ROLES = environment.group_roles("OIDC_GROUP_ROLES")

environment.require_way_in("LOCAL_ACCOUNTS", local_accounts=LOCAL_ACCOUNTS, issuer=OIDC_ISSUER)

# Mail server for invitations and password resets; without a host no mail is sent.
EMAIL_HOST = environment.text("EMAIL_HOST", "")
EMAIL_PORT = environment.number("EMAIL_PORT", 587, least=1)
EMAIL_HOST_USER = environment.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = environment.secret("EMAIL_HOST_PASSWORD")
EMAIL_USE_TLS = environment.flag("EMAIL_USE_TLS", default=True)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = environment.text("EMAIL_FROM", "gpucloud@localhost")

# Address under which people reach the server (https://gpus.example.org): links of messages lead there. Empty: no links.
PUBLIC_URL = environment.text("PUBLIC_URL", "").rstrip("/")

# Networks besides the public internet that webhooks may call.
WEBHOOK_NETWORKS = environment.networks("WEBHOOK_NETWORKS")

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hant", "繁體中文"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
# The cookie of the language switch in the top bar; no script needs it.
LANGUAGE_COOKIE_AGE = 365 * 86400
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
LANGUAGE_COOKIE_SECURE = HTTPS_ONLY
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
# The directory of collectstatic, with compressed files named by content hash; without it files are served from source.
STATIC_ROOT = environment.text("STATIC_ROOT", "") or None
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "gpucloud.fastpath.static_files.Named"
        if STATIC_ROOT
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = STATIC_ROOT is None
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
WHITENOISE_AUTOREFRESH = False

# No API body is larger than a few kilobytes.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20

# API requests per second for each token, person or address; 0: no limit.
THROTTLE_PER_SECOND = environment.number("THROTTLE_PER_SECOND", 600)
THROTTLE_BURST = environment.number("THROTTLE_BURST", 1000, least=1)

# Networks that may read /metrics and /metric without a token.
METRICS_CIDRS = environment.networks("METRICS_CIDRS")
# Limits of one scrape on GPUs and on assignments; above a limit it has none of them, and the agents' scrapes have them.
METRICS_MOST_DETAILS = environment.number("METRICS_MOST_DETAILS", 2000)

# Admission webhooks of clusters; see .env.example.
ADMISSION_SCHEDULER_NAME = environment.text("ADMISSION_SCHEDULER_NAME", "")
ADMISSION_DEFAULT_CORE = environment.number("ADMISSION_DEFAULT_CORE", 0)
ADMISSION_DEFAULT_MEMORY_MIB = environment.number("ADMISSION_DEFAULT_MEMORY_MIB", 0)
ADMISSION_TRUSTED = environment.words("ADMISSION_TRUSTED")
ADMISSION_TRANSLATE = environment.words("ADMISSION_TRANSLATE")
ADMISSION_REFUSE_UNMET = environment.flag("ADMISSION_REFUSE_UNMET", False)
ADMISSION_GPU_MEMORY_MIB = environment.number("ADMISSION_GPU_MEMORY_MIB", 0)
# MiB of one aliyun.com/gpu-mem: 1024, or 1.
GPUSHARE_UNIT_MIB = environment.number("GPUSHARE_UNIT_MIB", 1024, least=1)
ADMISSION_LIBRARY_DIRECTORY = environment.text("ADMISSION_LIBRARY_DIRECTORY", "")
ADMISSION_CDI_DEVICE = environment.text("ADMISSION_CDI_DEVICE", "")
ADMISSION_MIG = environment.text("ADMISSION_MIG", "leave")
# Keys of the webhook that charges ResourceClaims: all are accepted, the first is printed. Without one, anybody is.
ADMISSION_DEVICES_KEYS = environment.path_keys("ADMISSION_DEVICES_KEYS")

# NAMESPACE/NAME of the service account of the extender and of the watch over the cluster in which this process runs,
# where it is not this process's own.
CLUSTER_ACCOUNT = environment.text("CLUSTER_ACCOUNT", "")

# Time after which a bound pod that has not started and has no claim is evicted; 0: never.
POD_CLAIM_SECONDS = environment.number("POD_CLAIM_SECONDS", 300)
# A ResourceClaim that no pod uses holds its tenant's quota for so long; 0: to its end.
RESOURCE_CLAIM_UNUSED_SECONDS = environment.number("RESOURCE_CLAIM_UNUSED_SECONDS", 86_400)

# Address of the scheduler extender and its allowed clients: these networks or, with a certificate authority, every
# client with one of its certificates.
EXTENDER_HOST = environment.text("EXTENDER_HOST", "127.0.0.1")
EXTENDER_PORT = environment.number("EXTENDER_PORT", 3456, least=1)
EXTENDER_CIDRS = environment.networks("EXTENDER_CIDRS", "127.0.0.0/8,::1/128")
EXTENDER_CERTIFICATE = environment.text("EXTENDER_CERTIFICATE", "")
EXTENDER_KEY = environment.text("EXTENDER_KEY", "")
EXTENDER_CLIENT_CA = environment.text("EXTENDER_CLIENT_CA", "")
# NAMESPACE/NAME of the Lease by which one of several extenders leads; empty: there is one.
EXTENDER_LEASE = environment.text("EXTENDER_LEASE", "")

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.quotas.authentication.BearerToken",
        "apps.quotas.authentication.Session",
    ],
    "DEFAULT_THROTTLE_CLASSES": ["gpucloud.api.throttles.PerCaller"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["gpucloud.api.parsers.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["gpucloud.api.renderers.CompactJSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "gpucloud.api.schema.Schema",
    "DEFAULT_FILTER_BACKENDS": ["gpucloud.api.filters.StrictFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "gpucloud.api.pagination.Newest",
    "EXCEPTION_HANDLER": "gpucloud.api.problems.exception_handler",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "gpucloud",
    "DESCRIPTION": "Shares of GPUs for teams: quotas, claims, live reallocation, utilisation.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": r"/api/v1/",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "gpucloud.api.schema.add_problems",
        "gpucloud.api.schema.forbid_unknown_properties",
    ],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "ENUM_NAME_OVERRIDES": {
        "HolderKind": "apps.reservations.api.serializers.HOLDERS",
        "ReservationState": "apps.scheduling.models.ReservationState",
        "ReservationEnding": "apps.scheduling.models.reservation.Ending",
        "NoticeWhen": "apps.notices.models.When",
        "JobState": "apps.jobs.models.JobState",
        "JobKind": "apps.jobs.models.JobKind",
        "ClaimState": "apps.scheduling.models.ClaimState",
        "AssignmentState": "apps.scheduling.models.AssignmentState",
        "ProposalKind": "apps.scheduling.models.proposal.ProposalKind",
        "ProposalState": "apps.scheduling.models.ProposalState",
        "RebalanceMode": "apps.quotas.models.RebalanceMode",
        "DrainMode": "apps.nodes.models.node.DrainMode",
        "RebalancePolicy": "apps.quotas.models.RebalancePolicy",
        "QuotaRequestState": "apps.quotas.models.request.RequestState",
        "RequestPeriod": "apps.quotas.models.request.PERIODS",
        "PeriodEnum": "apps.quotas.models.budget.Period",
        "MemberRole": "apps.quotas.models.Role",
        "EventKind": "apps.quotas.models.EventKind",
        "ClusterState": "apps.clusters.models.ClusterState",
        "ClusterPlacement": "apps.clusters.models.Placement",
        "DeliveryState": "apps.quotas.models.webhook.DeliveryState",
        "SharingKind": "apps.whatif.values.KINDS",
        "ForecastSource": "apps.forecasts.api.forecasts.STATES",
    },
}

# File that a process without a port touches while its loop moves; empty: none (gpucloud/heartbeat.py).
HEARTBEAT_PATH = environment.text("HEARTBEAT_PATH", "")

CELERY_BROKER_URL = environment.celery_broker(REDIS_URL)
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "global_keyprefix": f"{REDIS_PREFIX}:celery:",
    # A push is a hint: publishing it must never delay a request while Redis is down.
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
    "visibility_timeout": 60,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
# Celery closes its database connections, and their pool, around each task, unless they may serve several: a new
# connection costs more than most tasks (gpucloud/celery.py gives them back to the pool).
CELERY_DB_REUSE_MAX = 1000
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# A child that hangs is killed: four of them would be a worker that does nothing, though its loop moves. Tasks take
# seconds, and after `visibility_timeout` another worker has the task in any case.
CELERY_TASK_TIME_LIMIT = 300
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Tasks are acknowledged late and may run twice: a task whose broker connection broke is abandoned and redelivered.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BEAT_SCHEDULE = periodic_tasks.SCHEDULE

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"class": "gpucloud.logs.OneLine", "format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}
    },
    "filters": {
        "occasional": {"()": "gpucloud.logs.Occasional"},
        "malformed": {"()": "gpucloud.logs.Occasional", "messages": ["Invalid HTTP request received."]},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "django.request": {"level": "ERROR"},  # A 404 is a response, not an event.
        # Scanners send any Host: the response is a 400, not an event.
        "django.security.DisallowedHost": {"filters": ["occasional"]},
        # Its INFO lines have the whole URLs of webhooks, which are secrets.
        "httpx": {"level": "WARNING"},
        "uvicorn.error": {"filters": ["malformed"]},
        "uvicorn.access": {"level": "WARNING"},
        # The heads of the audit log's chain are evidence: they are logged whatever LOG_LEVEL or a worker's own level
        # is.
        "apps.quotas.services.audit_chain": {"level": "INFO"},
    },
}
