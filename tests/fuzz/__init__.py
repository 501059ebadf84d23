"""Anything at all, by machine, into the decoders and the cores: ``make fuzz``.

``feeding.py`` is what bytes are fed to and what must hold then; ``__main__.py`` makes the bytes, guided by
coverage where that can be had.
"""
