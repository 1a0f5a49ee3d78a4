use proptest::prelude::*;

use super::*;

/// Texts over two tokens, so that many begin alike.
fn texts() -> impl Strategy<Value = Vec<u32>> {
    let runs = proptest::collection::vec((0..2_u32, 1..200_usize), 1..8);
    runs.prop_map(|runs| {
        runs.into_iter()
            .flat_map(|(token, times)| vec![token; times])
            .collect()
    })
}

fn root() -> BlockKey {
    BlockKey::root("")
}

/// Each block holds the text up to its end.
fn keep(tree: &mut Tree<Vec<u32>>, root: BlockKey, text: &[u32]) {
    for Missing { parent, range } in tree.missing(root, text) {
        let bytes = range.len() as u64;
        tree.insert(parent, &text[range.clone()], bytes, text[..range.end].to_vec());
    }
}

/// What is found, put together from the blocks.
fn found(tree: &mut Tree<Vec<u32>>, root: BlockKey, text: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    for (held, length) in tree.find(root, text) {
        assert!(length <= BLOCK_TOKENS);
        let begin = found.len() / BLOCK_TOKENS * BLOCK_TOKENS;
        assert_eq!(begin, found.len(), "only the last block may be cut");
        found.extend_from_slice(&held[begin..begin + length]);
    }
    found
}

fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

proptest! {
    #[test]
    fn the_longest_known_beginning_is_found(known in proptest::collection::vec(texts(), 1..12), asked in texts()) {
        let mut tree = Tree::default();
        for text in &known {
            keep(&mut tree, root(), text);
            prop_assert_eq!(&found(&mut tree, root(), text), text);
        }
        let longest = known.iter().map(|text| common(text, &asked)).max().unwrap();
        prop_assert_eq!(&found(&mut tree, root(), &asked)[..], &asked[..longest]);
        prop_assert!(found(&mut tree, BlockKey::root("salt"), &asked).is_empty());
    }

    #[test]
    fn what_is_held_stays_within_the_limit_and_whole(
        steps in proptest::collection::vec((texts(), 0..3000_u64, any::<bool>()), 1..20),
    ) {
        let mut tree = Tree::default();
        for (text, limit, all) in &steps {
            keep(&mut tree, root(), text);
            tree.shrink(*limit, *all);
            prop_assert!(tree.bytes() <= *limit || !all);
            let sum: u64 = tree.nodes.values().map(|node| node.bytes).sum();
            prop_assert_eq!((tree.bytes(), tree.order.len()), (sum, tree.nodes.len()));
            for node in tree.nodes.values() {
                prop_assert!(node.depth == 0 || tree.nodes.contains_key(&node.parent));
                prop_assert!(node.used <= tree.nodes.get(&node.parent).map_or(u64::MAX, |parent| parent.used));
            }
            for child in tree.children.values().flatten() {
                prop_assert!(tree.nodes.contains_key(child));
            }
            if !all {
                prop_assert_eq!(&found(&mut tree, root(), text), text, "the last use is kept");
            }
        }
    }
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut tree = Tree::default();
    let text = |token| vec![token; 300];
    for token in [1, 2, 3] {
        keep(&mut tree, root(), &text(token));
    }
    assert_eq!(tree.find(root(), &text(1)).len(), 2);
    tree.shrink(899, true);
    assert_eq!(tree.bytes(), 856, "the end of a text goes before its beginning");
    tree.shrink(600, true);
    assert!(tree.find(root(), &text(2)).is_empty());
    assert_eq!(found(&mut tree, root(), &text(1)), text(1));
    assert_eq!(found(&mut tree, root(), &text(3)), text(3));
}

#[test]
fn a_longer_end_takes_the_place_of_a_shorter_one() {
    let mut tree = Tree::default();
    keep(&mut tree, root(), &[7; 10]);
    keep(&mut tree, root(), &[7; 100]);
    assert_eq!(tree.bytes(), 100);
    keep(&mut tree, root(), &[7; 50]);
    assert_eq!(tree.bytes(), 100, "it is held already");
    keep(&mut tree, root(), &[7; 600]);
    assert_eq!(tree.bytes(), 600);
}
