"""What every page shares: access, sign-in, search, help, form fields, exports, live fragments."""
