"""The audit: every act of every user and key, written once and never changed."""
