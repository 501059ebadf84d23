"""The sentences of the demo, and the questions that are put to them."""

from __future__ import annotations

from pathlib import Path

SENTENCES = [
    line
    for line in (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]

QUESTIONS = [
    "How far is it to the Moon?",
    "Why did my application run out of RAM?",
    "I want a refund because my plane did not fly.",
    "Too many chefs in one kitchen ruin the meal.",
    "How long should I cook spaghetti?",
    "Can you help me sign in?",
]
