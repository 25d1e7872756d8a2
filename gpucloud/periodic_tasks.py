"""The periodic tasks of Celery beat."""

from typing import Any

from celery.schedules import crontab

SCHEDULE: dict[str, dict[str, Any]] = {
    # Two seconds: a lost push is repaired within 5 s + 2 s, and until an audit event is sealed, it could be removed
    # without a trace. Claims are driven last: making room may take long, and another process does the others' next run.
    "every-two-seconds": {
        "task": "gpucloud.celery.run_together",
        "args": [
            [
                "apps.quotas.tasks.seal_audit",
                "apps.suspension.tasks.rotate_claims",
                "apps.groups.tasks.size_groups",
                "apps.instances.tasks.drive_instances",
                "apps.scheduling.tasks.drive_reservations",
                "apps.scheduling.tasks.drive_claims",
            ]
        ],
        "schedule": 2.0,
        "options": {"expires": 4},
    },
    "every-five-seconds": {
        "task": "gpucloud.celery.run_together",
        "args": [
            [
                "apps.suspension.tasks.keep_schedules",
                "apps.scheduling.tasks.watch_claims",
                "apps.jobs.tasks.follow_jobs",
                "apps.accounting.tasks.stop_budgets",
            ]
        ],
        "schedule": 5.0,
        "options": {"expires": 10},
    },
    # Complete periods are rolled up, and periods with late frames again. A claim stands still from the end of one part
    # of a swap until a run begins the next.
    "every-ten-seconds": {
        "task": "gpucloud.celery.run_together",
        "args": [
            [
                "apps.suspension.tasks.give_up_moves",
                "apps.suspension.tasks.leave_unhealthy_gpus",
                "apps.nodes.tasks.roll_up_telemetry",
            ]
        ],
        "schedule": 10.0,
        "options": {"expires": 10},
    },
    # Partitions are made four hours ahead, so a worker may be down for as long.
    "keep-partitions": {"task": "apps.nodes.tasks.keep_partitions", "schedule": 60.0, "options": {"expires": 60}},
    "drop-old-rounds": {"task": "apps.scheduling.tasks.drop_old_rounds", "schedule": 3600.0},
    "check-ledger": {"task": "apps.accounting.tasks.check_ledger", "schedule": crontab(hour=3, minute=37)},
    "verify-audit": {"task": "apps.quotas.tasks.verify_audit", "schedule": crontab(hour=3, minute=17)},
    "lapse-requests": {"task": "apps.quotas.tasks.lapse_requests", "schedule": 30.0, "options": {"expires": 30}},
    # Repairs lost hints, and retries failed deliveries.
    "deliver-webhooks": {"task": "apps.quotas.tasks.deliver_webhooks", "schedule": 2.0, "options": {"expires": 4}},
    "drop-old-deliveries": {"task": "apps.quotas.tasks.drop_old_deliveries", "schedule": 3600.0},
    "watch-budgets": {"task": "apps.scheduling.tasks.watch_budgets", "schedule": 60.0, "options": {"expires": 60}},
    # Each run counts the last two hours again, second by second: more runs would be wasted work.
    "roll-up-usage": {"task": "apps.accounting.tasks.roll_up_usage", "schedule": crontab(minute=5)},
    "roll-up-allocations": {
        "task": "apps.accounting.tasks.roll_up_allocations",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    # A round counts what is held now by itself, so that past use may be a minute old.
    "settle-past-use": {"task": "apps.accounting.tasks.settle_past_use", "schedule": 30.0, "options": {"expires": 30}},
    # Returning lent core does not wait for this task: see `services.waking`.
    "rebalance-pools": {"task": "apps.scheduling.tasks.rebalance_pools", "schedule": 15.0, "options": {"expires": 15}},
    # A window of five minutes is complete in one run of five.
    "follow-use": {"task": "apps.forecasts.tasks.follow_use", "schedule": 60.0, "options": {"expires": 60}},
    # From the roll-ups, which are written every ten seconds.
    "watch-guarantees": {
        "task": "apps.accounting.tasks.watch_guarantees",
        "schedule": 15.0,
        "options": {"expires": 15},
    },
    "pack-claims": {"task": "apps.packing.tasks.pack_claims", "schedule": 15.0, "options": {"expires": 15}},
    "propose-room": {"task": "apps.instances.tasks.propose_room", "schedule": 15.0, "options": {"expires": 15}},
    "drop-old-proposals": {"task": "apps.scheduling.tasks.drop_old_proposals", "schedule": 3600.0},
    "send-notices": {"task": "apps.notices.tasks.send_notices", "schedule": 5.0, "options": {"expires": 10}},
    "drop-old-mails": {"task": "apps.notices.tasks.drop_old_mails", "schedule": 3600.0},
    "forget-job-output": {"task": "apps.jobs.tasks.forget_job_output", "schedule": 300.0},
    "forget-sign-ins": {"task": "apps.quotas.tasks.forget_sign_ins", "schedule": 3600.0},
    "forget-idempotency": {"task": "apps.quotas.tasks.forget_idempotency", "schedule": 3600.0},
}
