//! Which member of a group gets which buckets. Shares follow the weights; a member that goes takes
//! only its own buckets along, and one that comes takes no more than its share from the others, so
//! that every other flow keeps its way.

use crate::tables::NextHopId;

/// Number of buckets in a group.
pub const BUCKETS: usize = 256;

/// How many buckets each of `members` (with weights) is due: the largest remainders get what is
/// left over.
fn shares(members: &[(NextHopId, u32)]) -> Vec<usize> {
    let total: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
    if total == 0 {
        return vec![0; members.len()];
    }
    let exact = |weight: u32| u64::from(weight) * BUCKETS as u64;
    let mut shares: Vec<usize> = members.iter().map(|(_, w)| (exact(*w) / total) as usize).collect();
    let mut left = BUCKETS - shares.iter().sum::<usize>();
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(exact(members[i].1) % total), i));
    for &i in order.iter().cycle() {
        if left == 0 {
            break;
        }
        shares[i] += 1;
        left -= 1;
    }
    shares
}

/// Fills `buckets` with `members`, each named once, with weights; `before` says whether `buckets`
/// holds an older distribution whose flows should stay where they are. Without members nothing is
/// changed.
pub fn distribute(buckets: &mut [NextHopId; BUCKETS], members: &[(NextHopId, u32)], before: bool) {
    if members.is_empty() {
        return;
    }
    let mut left = shares(members);
    let mut open = Vec::new();
    for (place, bucket) in buckets.iter().enumerate() {
        match members.iter().position(|(id, _)| before && id == bucket) {
            Some(member) if left[member] > 0 => left[member] -= 1,
            _ => open.push(place),
        }
    }
    for place in open {
        // The member that lacks most, so that shares mix instead of forming runs.
        let member = (0..members.len()).max_by_key(|&i| (left[i], std::cmp::Reverse(i))).unwrap_or(0);
        buckets[place] = members[member].0;
        left[member] = left[member].saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(buckets: &[NextHopId; BUCKETS], id: NextHopId) -> usize {
        buckets.iter().filter(|b| **b == id).count()
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut buckets = [0; BUCKETS];
        distribute(&mut buckets, &[(20, 2), (21, 1), (22, 1)], false);
        assert_eq!([20, 21, 22].map(|id| count(&buckets, id)), [128, 64, 64]);
        distribute(&mut buckets, &[(20, 1), (21, 1), (22, 1)], false);
        assert!([20, 21, 22].iter().all(|id| (85..=86).contains(&count(&buckets, *id))));
    }

    #[test]
    fn a_member_that_goes_takes_only_its_own_flows_along() {
        let mut buckets = [0; BUCKETS];
        distribute(&mut buckets, &[(20, 1), (21, 1), (22, 2)], false);
        let before = buckets;
        distribute(&mut buckets, &[(20, 1), (22, 2)], true);
        for (old, new) in before.iter().zip(&buckets) {
            assert!(old == new || *old == 21);
        }
        assert_eq!(count(&buckets, 21), 0);
    }

    #[test]
    fn a_member_that_comes_takes_no_more_than_its_share() {
        let mut buckets = [0; BUCKETS];
        distribute(&mut buckets, &[(20, 1), (21, 1)], false);
        let before = buckets;
        distribute(&mut buckets, &[(20, 1), (21, 1), (22, 2)], true);
        let moved = before.iter().zip(&buckets).filter(|(old, new)| old != new).count();
        assert_eq!(moved, 128);
        assert_eq!(count(&buckets, 22), 128);
    }

    #[test]
    fn nothing_is_done_without_members() {
        let mut buckets = [7; BUCKETS];
        distribute(&mut buckets, &[], true);
        assert_eq!(buckets, [7; BUCKETS]);
        distribute(&mut buckets, &[(20, 0)], false);
        assert_eq!(count(&buckets, 20), BUCKETS);
    }
}
