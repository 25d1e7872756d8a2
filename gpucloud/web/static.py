"""Where the pages' files get their names: each by its content, so that a browser may keep it for good."""

from typing import Any

from whitenoise.storage import CompressedManifestStaticFilesStorage


class Named(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # no types are published
    """Files as `collectstatic` leaves them: the content's digest in the name, a gzipped one beside each."""

    # Modules name each other: they get the new names, too.
    support_js_module_import_aggregation = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Source maps are not served: what names them stays as it is.
        known: Any = super().patterns
        self.patterns: Any = tuple(
            (suffix, tuple(one for one in patterns if "sourceMappingURL" not in str(one))) for suffix, patterns in known
        )
        super().__init__(*args, **kwargs)
