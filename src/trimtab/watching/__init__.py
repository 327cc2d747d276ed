"""Watches a run while it trains: feeds the rules in the recorder's thread, writes down and says what they find."""
