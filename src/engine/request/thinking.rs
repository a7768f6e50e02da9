//! A bound on the reasoning of an answer: once it has that many tokens, its end marker replaces the token that the
//! model draws.

pub(crate) struct Bound {
    /// Maximum number of tokens of reasoning.
    most: u64,
    /// The tokens that end it.
    close: Vec<u32>,
    /// How many of these tokens came. Once the first came, all others follow.
    next: usize,
}

impl Bound {
    pub(crate) fn new(most: u64, close: Vec<u32>) -> Self {
        Self { most, close, next: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.close.capacity() * size_of::<u32>()
    }

    /// Whether the bound may still choose a token.
    pub(crate) fn holds(&self) -> bool {
        self.next < self.close.len()
    }

    /// The token that must come next, if the answer has `tokens` of reasoning and is `thinking`.
    pub(crate) fn forced(&self, thinking: bool, tokens: u64) -> Option<u32> {
        let begins = self.next > 0 || thinking && tokens >= self.most;
        self.close.get(self.next).copied().filter(|_| begins)
    }

    /// Records whether the forced token came. If the output's grammar does not allow it, the bound is
    /// dropped.
    pub(crate) fn came(&mut self, it_did: bool) {
        self.next = if it_did { self.next + 1 } else { self.close.len() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_marker_comes_once() {
        let mut bound = Bound::new(2, vec![7, 8]);
        assert_eq!((bound.forced(true, 1), bound.forced(false, 5)), (None, None));
        assert_eq!(bound.forced(true, 2), Some(7));
        bound.came(true);
        assert_eq!(bound.forced(false, 3), Some(8), "also where the first token has ended the reasoning");
        bound.came(true);
        assert_eq!((bound.forced(true, 9), bound.holds()), (None, false));
        let mut bound = Bound::new(0, vec![7, 8]);
        assert_eq!(bound.forced(true, 0), Some(7));
        bound.came(false);
        assert_eq!((bound.forced(true, 9), bound.holds()), (None, false));
    }
}
