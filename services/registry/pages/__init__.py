"""The dashboard: pages rendered from what the catalog says, kept live by server-sent events; a GET changes nothing."""
