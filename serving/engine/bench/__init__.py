"""The engine alone, without transport: the limit that everything around it is measured against. No serving process
imports it."""
