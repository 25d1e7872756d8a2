"""Members of claims that hold something, for their limits."""

from django.db import migrations

BY_PEOPLE = """
UPDATE scheduling_claim claim SET user_id = person.id FROM quotas_user person
WHERE claim.charged_vgpus > 0 AND claim.created_by = 'user:' || person.username;
"""
BY_TOKENS = """
UPDATE scheduling_claim claim SET user_id = token.user_id FROM quotas_token token
WHERE claim.charged_vgpus > 0 AND claim.created_by = 'token:gpc_' || token.key;
"""


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0007_claim_user")]

    operations = [migrations.RunSQL([BY_PEOPLE, BY_TOKENS], migrations.RunSQL.noop)]
