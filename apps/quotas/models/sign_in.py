"""Records of sign-ins: identities at the identity provider, and counted attempts."""

from django.db import models

from apps.quotas.models.tenant import User


class Identity(models.Model):
    """A user at an OpenID provider: the provider never reuses `subject`, unlike a name."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=300)
    subject = models.CharField(max_length=255)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "identities"
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_once")]

    def __str__(self) -> str:
        return f"{self.user} is {self.subject} at {self.issuer}"


class Attempts(models.Model):
    """Attempts under a key until `ends_at`. The key is a digest: typed names are not stored."""

    key = models.CharField(max_length=64, primary_key=True)
    taken = models.PositiveIntegerField(default=0)
    ends_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name_plural = "attempts"

    def __str__(self) -> str:
        return f"{self.taken} until {self.ends_at:%H:%M:%S}"
