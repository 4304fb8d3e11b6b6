//! The list as a Merkle sum tree: every node is a hash and the sum of the amounts below it.
//!
//! A leaf hashes the byte 0 and the allocation's 60 bytes, an inner node the byte 1 and its two children with
//! their amounts. So no inner node can pass for a leaf, nor a leaf for an inner node. Because a parent hashes
//! what its children amount to, whoever can prove an allocation is counted in the sum at the root: the program
//! knows what the list promises without having seen it.
use crate::allocation::Allocation;
use psyche_common::sys::sha256;

/// One level of a proof: the sibling's hash and, little endian, its amount.
pub const LEVEL_BYTES: usize = 40;
const LEAF: [u8; 1] = [0];
const INNER: [u8; 1] = [1];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub hash: [u8; 32],
    pub amount: u64,
}

pub fn leaf(allocation: &Allocation) -> Node {
    let hash = sha256(&[
        &LEAF,
        allocation.claimer,
        &allocation.nonce.to_le_bytes(),
        &allocation.start_unix_timestamp.to_le_bytes(),
        &allocation.duration_seconds.to_le_bytes(),
        &allocation.end_collateral_amount.to_le_bytes(),
    ]);
    Node { hash, amount: allocation.end_collateral_amount }
}

/// The smaller child first, so that a proof needs no sides. None when the sum is beyond 64 bits.
fn parent(one: &Node, other: &Node) -> Option<Node> {
    let (low, high) = if one <= other { (one, other) } else { (other, one) };
    let amount = low.amount.checked_add(high.amount)?;
    let (a, b) = (low.amount.to_le_bytes(), high.amount.to_le_bytes());
    Some(Node { hash: sha256(&[&INNER, &low.hash, &a, &high.hash, &b]), amount })
}

/// Where `proof` leads from a leaf. None when it is no whole number of levels, or its sums overflow.
pub fn climb(leaf: Node, proof: &[u8]) -> Option<Node> {
    if proof.len() % LEVEL_BYTES != 0 {
        return None;
    }
    let mut node = leaf;
    for level in proof.chunks_exact(LEVEL_BYTES) {
        let (hash, amount) = level.split_at(32);
        let sibling =
            Node { hash: hash.try_into().ok()?, amount: u64::from_le_bytes(amount.try_into().ok()?) };
        node = parent(&node, &sibling)?;
    }
    Some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(claimer: u8, amount: u64) -> Node {
        leaf(&Allocation {
            claimer: &[claimer; 32],
            nonce: 1,
            start_unix_timestamp: 2,
            duration_seconds: 3,
            end_collateral_amount: amount,
        })
    }

    fn level(node: &Node) -> Vec<u8> {
        [&node.hash[..], &node.amount.to_le_bytes()].concat()
    }

    #[test]
    fn known_answers() {
        // sha256 over 00, 32 x 05, then 1, 2, 3, 4 as u64, i64, u32, u64
        assert_eq!(make(5, 4).hash[..4], [0xd4, 0x1b, 0x6b, 0x1a]);
        assert_eq!(parent(&make(5, 4), &make(6, 7)).unwrap().hash[..4], [0x24, 0xee, 0x9f, 0x96]);
    }

    #[test]
    fn every_leaf_of_three_leads_to_the_root() {
        let (a, b, c) = (make(1, 10), make(2, 20), make(3, 30));
        let ab = parent(&a, &b).unwrap();
        let root = parent(&ab, &c).unwrap();
        assert_eq!(root.amount, 60);
        assert_eq!(climb(a, &[level(&b), level(&c)].concat()), Some(root));
        assert_eq!(climb(b, &[level(&a), level(&c)].concat()), Some(root));
        assert_eq!(climb(c, &level(&ab)), Some(root));
        assert_ne!(climb(a, &[level(&c), level(&b)].concat()), Some(root));
    }

    #[test]
    fn sides_do_not_matter_and_amounts_do() {
        let (a, b) = (make(1, 10), make(2, 20));
        assert_eq!(parent(&a, &b), parent(&b, &a));
        let lie = Node { amount: 19, ..b };
        assert_ne!(climb(a, &level(&lie)).unwrap().hash, climb(a, &level(&b)).unwrap().hash);
    }

    #[test]
    fn malformed_proofs() {
        let a = make(1, 10);
        assert_eq!(climb(a, &[]), Some(a));
        assert_eq!(climb(a, &[0; 39]), None);
        assert_eq!(climb(a, &[0; 41]), None);
        assert_eq!(climb(a, &level(&Node { hash: [9; 32], amount: u64::MAX - 9 })), None);
        assert!(climb(a, &level(&Node { hash: [9; 32], amount: u64::MAX - 10 })).is_some());
    }
}
