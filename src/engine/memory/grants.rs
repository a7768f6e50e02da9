//! Decides whether memory for more output can be granted so that every request can still finish.

/// Bytes that a request with grants may still need, and bytes that are returned when it has ended and is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub need: u64,
    pub held: u64,
}

/// Returns whether `left` bytes suffice to meet all of `claims` one after the other: the banker's algorithm
/// (Dijkstra, EWD 623) for one resource. Sorts the claims.
pub(crate) fn is_safe(mut left: u64, claims: &mut [Claim]) -> bool {
    claims.sort_unstable();
    claims.iter().all(|claim| {
        let met = claim.need <= left;
        left = left.saturating_add(claim.held);
        met
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_ones_make_room_for_the_large() {
        let claims =
            |all: &[(u64, u64)]| all.iter().map(|&(need, held)| Claim { need, held }).collect::<Vec<_>>();
        assert!(is_safe(0, &mut []));
        assert!(is_safe(10, &mut claims(&[(30, 5), (10, 12), (20, 8)])));
        assert!(!is_safe(9, &mut claims(&[(30, 5), (10, 12), (20, 8)])));
        assert!(!is_safe(10, &mut claims(&[(31, 5), (10, 12), (20, 8)])), "no one can ever have 31");
        assert!(is_safe(u64::MAX, &mut claims(&[(5, u64::MAX), (u64::MAX, 1)])));
    }
}
