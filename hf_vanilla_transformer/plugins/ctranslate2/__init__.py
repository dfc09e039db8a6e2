"""The runtime CTranslate2: `ctranslate2_runtime.py` writes its models, runs them, and recognises their folders."""
