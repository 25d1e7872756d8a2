"""The shared part of every page: access, sign-in, search, help, form fields, exports, live fragments."""
