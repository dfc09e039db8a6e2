"""The results of the paper's Table 3, beside which the scripts of this folder print their own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Results of a row of Table 3 on newstest2013, and its parameters in millions where the paper reports them."""

    perplexity: float
    bleu: float
    millions: int | None = None


TABLE_3: dict[str, Published] = {
    "base": Published(4.92, 25.8, 65),
    "A1": Published(5.29, 24.9),
    "A2": Published(5.00, 25.5),
    "A3": Published(4.91, 25.8),
    "A4": Published(5.01, 25.4),
    "B1": Published(5.16, 25.1, 58),
    "B2": Published(5.01, 25.4, 60),
    "C1": Published(6.11, 23.7, 36),
    "C2": Published(5.19, 25.3, 50),
    "C3": Published(4.88, 25.5, 80),
    "C4": Published(5.75, 24.5, 28),
    "C5": Published(4.66, 26.0, 168),
    "C6": Published(5.12, 25.4, 53),
    "C7": Published(4.75, 26.2, 90),
    "D1": Published(5.77, 24.6),
    "D2": Published(4.95, 25.5),
    "D3": Published(4.67, 25.3),
    "D4": Published(5.47, 25.7),
    "E": Published(4.92, 25.7),
    "big": Published(4.33, 26.4, 213),
}
