"""The only room that opens log files: what the live half wrote comes back as columns, tables and notices."""
