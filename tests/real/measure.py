"""The distance of a model's probabilities from a reference's."""
import math


def perplexity(log_probabilities):
    """e to the mean of the negative log probabilities of a text's tokens."""
    return math.exp(-sum(log_probabilities) / len(log_probabilities))


def divergence(reference, rows):
    """The mean KL divergence of `rows` from `reference` in nats, from the most likely tokens of each position: lists of
    (token, log probability). Tokens that are in both lists count alone and all others together, so it is a lower bound."""
    total = 0.0
    for exact, row in zip(reference, rows, strict=True):
        q = dict(row)
        both = [(p, q[token]) for token, p in exact if token in q]
        rest_p, rest_q = (max(1 - sum(math.exp(pair[i]) for pair in both), 1e-9) for i in (0, 1))
        total += sum(math.exp(p) * (p - q) for p, q in both) + rest_p * math.log(rest_p / rest_q)
    return total / len(reference)
