"""Views of /job-files/."""

import base64
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.jobs.api.serializers import JobFilesSerializer
from apps.jobs.models import JobFiles
from apps.jobs.services.files import MOST_PIECE_BYTES, announce_files, store_piece
from apps.quotas.api.methods import order, shows
from apps.quotas.api.views import ApiView
from apps.quotas.idempotency import idempotent
from gpucloud.api.serializers import Strict, StrictInteger


class Base64(serializers.CharField):
    """Bytes of a piece."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the bytes."""
        text = super().to_internal_value(data)
        try:
            value = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise serializers.ValidationError("This is not base64.") from error
        if len(value) > MOST_PIECE_BYTES:
            raise serializers.ValidationError(f"A piece has {MOST_PIECE_BYTES} bytes at most.")
        return value


class PieceSerializer(Strict):
    """A piece of an archive."""

    offset = StrictInteger(min_value=0, max_value=2**40, help_text="Where the piece begins, in bytes.")
    content = Base64(help_text="Its bytes, 512 KiB at most, in base64.")


class FilesView(ApiView):
    """The common part of views of files."""

    serializer_class: Any = JobFilesSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"
    queryset = JobFiles.objects.select_related("tenant")
    answer_class, address = JobFilesSerializer, "/job-files/{row.uid}/"


class FilesList(FilesView):
    """Archives of files."""

    tagged = False

    @extend_schema(responses={201: JobFilesSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Announce an archive (.tar.gz or .zip) by digest and length.

        One that the tenant has is returned; `stored_bytes` says where its upload goes on.
        """
        return self.respond(announce_files(principal=self.principal, **self.parse_body(request)), status=201)


class FilesDetail(FilesView):
    """One archive."""

    get = shows("Show an archive, without its content.")


FilesPieces = order(
    FilesView,
    store_piece,
    "files",
    "Store a piece, 512 KiB at most. One that was sent twice is stored once; the last one checks the digest.",
    body=PieceSerializer,
)
