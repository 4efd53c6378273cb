"""A stand-in for SGLang with its published signatures; `test_sglang_drift.py` compares it with the real source."""
