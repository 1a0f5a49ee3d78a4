use proptest::prelude::*;

use super::*;

/// Texts over two tokens, so that many begin alike.
fn texts() -> impl Strategy<Value = Vec<u32>> {
    let repeated = proptest::collection::vec((0..2_u32, 1..200_usize), 1..8);
    repeated.prop_map(|runs| {
        runs.into_iter()
            .flat_map(|(token, times)| vec![token; times])
            .collect()
    })
}

impl InMemory for Vec<u32> {
    fn take_snapshot(&mut self, _: Self) {}
}

fn root() -> BlockKey {
    BlockKey::root("m", "")
}

fn of(bytes: u64, snapshot: bool) -> Stored {
    Stored { bytes, snapshot }
}

/// Each block holds the text up to its end.
fn keep(tree: &mut Tree<Vec<u32>>, root: BlockKey, text: &[u32]) {
    for run in runs(tree.missing(root, text)) {
        put(tree, text, &run);
    }
}

/// Together.
fn put(tree: &mut Tree<Vec<u32>>, text: &[u32], run: &[Missing]) {
    let blocks = run.iter().map(|Missing { range, .. }| {
        let size = of(range.len() as u64, range.end == text.len());
        (&text[range.clone()], size, text[..range.end].to_vec())
    });
    tree.insert(run[0].parent, blocks);
}

/// What is found, put together from the blocks.
fn found(tree: &mut Tree<Vec<u32>>, root: BlockKey, text: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    for (held, length) in tree.find(root, text, Tiers::Both).held {
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
        let mut tree = Tree::new(Cuts::Anywhere);
        for text in &known {
            keep(&mut tree, root(), text);
            prop_assert_eq!(&found(&mut tree, root(), text), text);
        }
        let longest = known.iter().map(|text| common(text, &asked)).max().unwrap();
        prop_assert_eq!(&found(&mut tree, root(), &asked)[..], &asked[..longest]);
        prop_assert!(found(&mut tree, BlockKey::root("m", "salt"), &asked).is_empty());
    }

    #[test]
    fn what_is_held_stays_within_the_limit_and_whole(
        steps in proptest::collection::vec((texts(), 0..3000_u64, any::<bool>()), 1..20),
    ) {
        let mut tree = Tree::new(Cuts::Anywhere);
        for (text, limit, all) in &steps {
            keep(&mut tree, root(), text);
            tree.shrink(*limit, *all);
            prop_assert!(tree.bytes() <= *limit || !all);
            let sum: u64 = tree.nodes.values().filter_map(|node| Some(node.memory.as_ref()?.size.bytes)).sum();
            prop_assert_eq!(tree.bytes(), sum);
            let held = |key: &BlockKey| tree.nodes[key].memory.as_ref().map_or(0, |held| held.size.bytes);
            for (blocks, bytes) in tree.memory.sizes() {
                prop_assert_eq!(bytes, blocks.iter().map(held).sum::<u64>());
                prop_assert!(!blocks.is_empty() && blocks.len() <= spans::SPAN_BLOCKS);
            }
            prop_assert_eq!(tree.memory.sizes().map(|(blocks, _)| blocks.len()).sum::<usize>(), tree.nodes.len());
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

proptest! {
    #[test]
    fn paths_are_touched_together_as_one_by_one(known in proptest::collection::vec(texts(), 1..12)) {
        let mut trees = [Tree::new(Cuts::Anywhere), Tree::new(Cuts::Anywhere)];
        for tree in &mut trees {
            known.iter().for_each(|text| keep(tree, root(), text));
        }
        let [one, all] = &mut trees;
        let ends: Vec<_> = known.iter().filter_map(|text| one.holders(root(), text).last().copied()).collect();
        ends.iter().for_each(|key| one.touch_path(*key));
        all.touch_paths(&ends);
        for (key, node) in &one.nodes {
            prop_assert_eq!(node.used, all.nodes[key].used);
        }
        prop_assert_eq!(one.now, all.now);
    }
}

#[test]
fn a_file_hides_nothing_that_is_in_memory() {
    let mut tree = Tree::new(Cuts::Anywhere);
    let text = |same: usize, other: u32| [vec![1; same], vec![other; 40]].concat();
    keep(&mut tree, root(), &text(200, 2));
    tree.add_file(root(), &text(203, 3), of(1, false));
    let asked = text(203, 4);
    assert_eq!(tree.find(root(), &asked, Tiers::Memory).held_tokens(), 200);
    let found = tree.find(root(), &asked, Tiers::Both);
    assert_eq!((found.held_tokens(), found.filed[0].tokens), (0, 203));
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut tree = Tree::new(Cuts::Anywhere);
    let text = |token| vec![token; 300];
    for token in [1, 2, 3] {
        keep(&mut tree, root(), &text(token));
    }
    assert_eq!(tree.find(root(), &text(1), Tiers::Both).held.len(), 2);
    tree.shrink(899, true);
    assert_eq!(tree.bytes(), 856, "the end of a text goes before its beginning");
    tree.shrink(600, true);
    assert!(tree.find(root(), &text(2), Tiers::Both).held.is_empty());
    assert_eq!(found(&mut tree, root(), &text(1)), text(1));
    assert_eq!(found(&mut tree, root(), &text(3)), text(3));
}

#[test]
fn a_longer_end_takes_the_place_of_a_shorter_one() {
    let mut tree = Tree::new(Cuts::Anywhere);
    keep(&mut tree, root(), &[7; 10]);
    keep(&mut tree, root(), &[7; 100]);
    assert_eq!(tree.bytes(), 100);
    keep(&mut tree, root(), &[7; 50]);
    assert_eq!(tree.bytes(), 100, "it is held already");
    keep(&mut tree, root(), &[7; 600]);
    assert_eq!(tree.bytes(), 600);
}

/// The numbers of blocks that share a span, in the order of their texts.
fn shared(tree: &Tree<Vec<u32>>) -> Vec<usize> {
    let mut spans: Vec<_> = tree.memory.sizes().collect();
    spans.sort_by_key(|(blocks, _)| tree.nodes[&blocks[0]].depth);
    spans.into_iter().map(|(blocks, _)| blocks.len()).collect()
}

#[test]
fn what_is_computed_together_shares_a_span_and_goes_with_it() {
    let mut tree = Tree::new(Cuts::Anywhere);
    let text: Vec<u32> = (0..3000).collect();
    keep(&mut tree, root(), &text[..300]);
    keep(&mut tree, root(), &text);
    // What was there; up to a whole multiple; from there; what is less than a block.
    assert_eq!(shared(&tree), [1, 7, 3, 1]);
    tree.shrink(2999, true);
    assert_eq!(tree.bytes(), 2816);
    tree.shrink(2815, true);
    assert_eq!(tree.bytes(), 2048);
    assert_eq!(found(&mut tree, root(), &text), text[..2048]);
}

#[test]
fn what_came_block_by_block_is_put_together() {
    let mut tree = Tree::new(Cuts::Anywhere);
    let text: Vec<u32> = (0..4500).collect();
    for end in (0..4500).step_by(300) {
        keep(&mut tree, root(), &text[..end]);
    }
    let scattered = tree.scattered(root(), &text);
    assert_eq!(scattered.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8]);
    let bytes = tree.bytes();
    for run in scattered {
        put(&mut tree, &text, &run);
    }
    assert_eq!(shared(&tree), [8, 8, 1]);
    assert_eq!(
        (tree.bytes(), found(&mut tree, root(), &text).len()),
        (bytes, 4200)
    );
    assert!(tree.scattered(root(), &text).is_empty());
}

/// Putting it together for the one would take it apart for the other.
#[test]
fn a_span_that_others_use_stays() {
    let mut tree = Tree::new(Cuts::Anywhere);
    let text: Vec<u32> = (0..2048).collect();
    keep(&mut tree, root(), &text);
    let other: Vec<u32> = (0..1024).chain(5000..6024).collect();
    keep(&mut tree, root(), &other);
    assert_eq!(shared(&tree), [8, 4]);
    assert!(tree.scattered(root(), &other).is_empty() && tree.scattered(root(), &text).is_empty());
}

/// Files of every block of `text`, of which one token is one byte.
fn file(tree: &mut Tree<Vec<u32>>, text: &[u32]) {
    let mut parent = root();
    for block in text.chunks(BLOCK_TOKENS) {
        tree.add_file(parent, block, of(block.len() as u64, false));
        parent = parent.child(block);
    }
    tree.touch_path(parent);
}

#[test]
fn what_is_only_in_files_is_found_as_such() {
    let mut tree = Tree::new(Cuts::Anywhere);
    let text: Vec<u32> = (0..600).collect();
    file(&mut tree, &text);
    let filed = |tree: &mut Tree<Vec<u32>>, text: &[u32]| {
        let found = tree.find(root(), text, Tiers::Both);
        let filed: Vec<usize> = found.filed.iter().map(|filed| filed.tokens).collect();
        (found.held.len(), filed)
    };
    assert_eq!(filed(&mut tree, &text), (0, vec![256, 256, 88]));
    assert_eq!(filed(&mut tree, &text[..300]), (0, vec![256, 44]));
    let first = tree.find(root(), &text, Tiers::Both).filed[0].key;
    let second = tree.find(root(), &text, Tiers::Both).filed[1].key;
    assert!(!tree.continues_memory(second), "what is before it comes first");
    assert!(tree.continues_memory(first));
    tree.hold(first, of(256, false), text[..256].to_vec());
    assert!(tree.continues_memory(second));
    assert_eq!(filed(&mut tree, &text), (1, vec![256, 88]));
    assert_eq!(tree.missing(root(), &text).len(), 2);
    // Out of memory it is still there; without its file it is not, nor what follows.
    tree.shrink(0, true);
    assert_eq!((tree.bytes(), tree.file_bytes()), (0, 600));
    assert!(tree.lose_file(first));
    assert_eq!(filed(&mut tree, &text), (0, vec![]));
    assert!(!tree.lose_file(first));
}

#[test]
fn files_go_by_their_last_use_and_leave_nothing_behind() {
    let mut tree = Tree::new(Cuts::Anywhere);
    for token in [1, 2, 3] {
        file(&mut tree, &[token; 300]);
    }
    tree.find(root(), &[1; 300], Tiers::Both);
    assert_eq!(tree.shrink_files(600).len(), 2, "of the second text");
    assert_eq!(tree.find(root(), &[1; 300], Tiers::Both).filed.len(), 2);
    assert_eq!(tree.find(root(), &[2; 300], Tiers::Both).filed, []);
    assert_eq!(tree.shrink_files(0).len(), 4);
    assert!(tree.nodes.is_empty() && tree.children.is_empty());
}

#[test]
fn a_longer_end_makes_a_file_useless() {
    let mut tree = Tree::new(Cuts::Anywhere);
    file(&mut tree, &[7; 300]);
    let short = tree.find(root(), &[7; 300], Tiers::Both).filed[1].key;
    tree.hold(BlockKey::child(root(), &[7; 256]), of(256, false), Vec::new());
    let parent = root().child(&[7; 256]);
    let longer = (&[7; 50][..], of(50, false), Vec::new());
    assert_eq!(tree.insert(parent, [longer]), [short]);
    assert_eq!(tree.file_bytes(), 256);
}

/// What can be gone on from, in tokens, of memory and of all places.
fn resumable(tree: &mut Tree<Vec<u32>>, text: &[u32]) -> (usize, usize) {
    let memory: usize = tree
        .find(root(), text, Tiers::Memory)
        .held
        .iter()
        .map(|(_, tokens)| tokens)
        .sum();
    let found = tree.find(root(), text, Tiers::Both);
    let held: usize = found.held.iter().map(|(_, tokens)| tokens).sum();
    (
        memory,
        held + found.filed.iter().map(|filed| filed.tokens).sum::<usize>(),
    )
}

#[test]
fn a_text_is_gone_on_from_at_its_snapshots_only() {
    let mut tree = Tree::new(Cuts::AtSnapshots);
    let text: Vec<u32> = (0..1000).collect();
    for end in [600, 512, 700] {
        keep(&mut tree, root(), &text[..end]);
    }
    for (asked, found) in [
        (511, 0),
        (512, 512),
        (599, 512),
        (600, 600),
        (699, 600),
        (700, 700),
        (1000, 700),
    ] {
        assert_eq!(resumable(&mut tree, &text[..asked]), (found, found), "{asked}");
    }
    // Two whole blocks, one of them with a snapshot, and two ends of the third.
    assert_eq!((tree.nodes.len(), tree.bytes()), (4, 512 + 88 + 188));
    assert_eq!(tree.known(root(), &text), 700);
    assert!(tree.missing(root(), &text[..600]).is_empty());
    assert_eq!(tree.missing(root(), &text[..256]).len(), 1, "it has no snapshot");
    assert_eq!(tree.holders(root(), &text[..600]).len(), 3);
}

#[test]
fn a_file_with_a_snapshot_adds_it_to_a_block_in_memory() {
    let mut tree = Tree::new(Cuts::AtSnapshots);
    let text: Vec<u32> = (0..600).collect();
    keep(&mut tree, root(), &text);
    let first = root().child(&text[..256]);
    tree.add_file(root(), &text[..256], of(256, false));
    assert!(tree.has_file(first));
    assert_eq!(resumable(&mut tree, &text[..300]), (0, 0));
    tree.add_file(root(), &text[..256], of(300, true));
    assert_eq!(
        (tree.file_bytes(), resumable(&mut tree, &text[..300])),
        (300, (0, 256))
    );
    tree.hold(first, of(300, true), text[..256].to_vec());
    assert_eq!(resumable(&mut tree, &text[..300]), (256, 256));
    // Nothing is lost to a block that comes late and has less.
    tree.hold(first, of(256, false), text[..256].to_vec());
    assert_eq!(
        (tree.bytes(), resumable(&mut tree, &text[..300])),
        (644, (256, 256))
    );
    tree.lose_file(first);
    assert!(!tree.has_file(first));
}

proptest! {
    #[test]
    fn the_last_snapshot_within_a_text_is_found(known in proptest::collection::vec(texts(), 1..12), asked in texts()) {
        let mut tree = Tree::new(Cuts::AtSnapshots);
        for text in &known {
            keep(&mut tree, root(), text);
        }
        let longest = known.iter().filter(|text| asked.starts_with(text)).map(Vec::len).max().unwrap_or(0);
        let found = found(&mut tree, root(), &asked);
        prop_assert_eq!(&found[..], &asked[..longest]);
        tree.shrink(0, true);
        prop_assert!(tree.nodes.is_empty() && tree.children.is_empty());
    }
}
