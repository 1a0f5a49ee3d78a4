use proptest::prelude::*;

use super::*;

/// Texts of two different tokens, so that many share prefixes.
fn texts() -> impl Strategy<Value = Vec<u32>> {
    let repeated = proptest::collection::vec((0..2_u32, 1..200_usize), 1..8);
    repeated.prop_map(|runs| {
        runs.into_iter()
            .flat_map(|(token, times)| vec![token; times])
            .collect()
    })
}

impl MemoryBlock for Vec<u32> {
    fn take_snapshot(&mut self, _: Self) {}
}

fn root() -> BlockKey {
    BlockKey::root("m", "")
}

fn of(bytes: u64, snapshot: bool) -> Stored {
    Stored { bytes, snapshot }
}

/// Stores a text; each block holds the text up to its end.
fn keep(tree: &mut Tree<Vec<u32>>, root: BlockKey, text: &[u32]) {
    for run in runs(tree.missing(root, text)) {
        put(tree, text, &run);
    }
}

/// Inserts the blocks of a run together.
fn put(tree: &mut Tree<Vec<u32>>, text: &[u32], run: &[Missing]) {
    let blocks = run.iter().map(|Missing { range, .. }| {
        let size = of(range.len() as u64, range.end == text.len());
        (&text[range.clone()], size, text[..range.end].to_vec())
    });
    tree.insert(run[0].parent, blocks);
}

/// Returns the prefix that is found, assembled from its blocks.
fn found(tree: &mut Tree<Vec<u32>>, root: BlockKey, text: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    for (text_so_far, length) in tree.find(root, text, Tiers::Both).in_memory {
        assert!(length <= BLOCK_TOKENS);
        let begin = found.len() / BLOCK_TOKENS * BLOCK_TOKENS;
        assert_eq!(begin, found.len(), "only the last block may be cut");
        found.extend_from_slice(&text_so_far[begin..begin + length]);
    }
    found
}

fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

proptest! {
    #[test]
    fn finds_the_longest_cached_prefix(known in proptest::collection::vec(texts(), 1..12), asked in texts()) {
        let mut tree = Tree::new(ResumePoints::Anywhere);
        for text in &known {
            keep(&mut tree, root(), text);
            prop_assert_eq!(&found(&mut tree, root(), text), text);
        }
        let longest = known.iter().map(|text| common(text, &asked)).max().unwrap();
        prop_assert_eq!(&found(&mut tree, root(), &asked)[..], &asked[..longest]);
        prop_assert!(found(&mut tree, BlockKey::root("m", "salt"), &asked).is_empty());
    }

    #[test]
    fn shrinking_respects_the_limit_and_keeps_the_tree_consistent(
        steps in proptest::collection::vec((texts(), 0..3000_u64, any::<bool>()), 1..20),
    ) {
        let mut tree = Tree::new(ResumePoints::Anywhere);
        for (text, limit, all) in &steps {
            keep(&mut tree, root(), text);
            tree.shrink(*limit, *all);
            prop_assert!(tree.bytes() <= *limit || !all);
            let sum: u64 = tree.nodes.values().filter_map(|node| Some(node.memory.as_ref()?.size.bytes)).sum();
            prop_assert_eq!(tree.bytes(), sum);
            let bytes_of = |key: &BlockKey| tree.nodes[key].memory.as_ref().map_or(0, |entry| entry.size.bytes);
            for (blocks, bytes) in tree.memory.sizes() {
                prop_assert_eq!(bytes, blocks.iter().map(bytes_of).sum::<u64>());
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
                prop_assert_eq!(&found(&mut tree, root(), text), text, "the latest use is spared");
            }
        }
    }
}

proptest! {
    #[test]
    fn touch_paths_equals_touching_each_path(known in proptest::collection::vec(texts(), 1..12)) {
        let mut trees = [Tree::new(ResumePoints::Anywhere), Tree::new(ResumePoints::Anywhere)];
        for tree in &mut trees {
            known.iter().for_each(|text| keep(tree, root(), text));
        }
        let [one, all] = &mut trees;
        let ends: Vec<_> = known.iter().filter_map(|text| one.blocks_of(root(), text).last().copied()).collect();
        ends.iter().for_each(|key| one.touch_path(*key));
        all.touch_paths(&ends);
        for (key, node) in &one.nodes {
            prop_assert_eq!(node.used, all.nodes[key].used);
        }
        prop_assert_eq!(one.now, all.now);
    }
}

#[test]
fn memory_search_ignores_longer_files() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    let text = |same: usize, other: u32| [vec![1; same], vec![other; 40]].concat();
    keep(&mut tree, root(), &text(200, 2));
    tree.add_file(root(), &text(203, 3), of(1, false));
    let asked = text(203, 4);
    assert_eq!(tree.find(root(), &asked, Tiers::Memory).memory_tokens(), 200);
    let found = tree.find(root(), &asked, Tiers::Both);
    assert_eq!((found.memory_tokens(), found.in_files[0].tokens), (0, 203));
}

#[test]
fn evicts_the_least_recently_used_first() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    let text = |token| vec![token; 300];
    for token in [1, 2, 3] {
        keep(&mut tree, root(), &text(token));
    }
    assert_eq!(tree.find(root(), &text(1), Tiers::Both).in_memory.len(), 2);
    tree.shrink(899, true);
    assert_eq!(
        tree.bytes(),
        856,
        "the end of a text is evicted before its beginning"
    );
    tree.shrink(600, true);
    assert!(tree.find(root(), &text(2), Tiers::Both).in_memory.is_empty());
    assert_eq!(found(&mut tree, root(), &text(1)), text(1));
    assert_eq!(found(&mut tree, root(), &text(3)), text(3));
}

#[test]
fn longer_block_replaces_its_shorter_beginning() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    keep(&mut tree, root(), &[7; 10]);
    keep(&mut tree, root(), &[7; 100]);
    assert_eq!(tree.bytes(), 100);
    keep(&mut tree, root(), &[7; 50]);
    assert_eq!(tree.bytes(), 100, "already in memory");
    keep(&mut tree, root(), &[7; 600]);
    assert_eq!(tree.bytes(), 600);
}

/// Numbers of blocks that share a span, in the order of their texts.
fn shared(tree: &Tree<Vec<u32>>) -> Vec<usize> {
    let mut spans: Vec<_> = tree.memory.sizes().collect();
    spans.sort_by_key(|(blocks, _)| tree.nodes[&blocks[0]].depth);
    spans.into_iter().map(|(blocks, _)| blocks.len()).collect()
}

#[test]
fn blocks_stored_together_share_a_span_and_its_eviction() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    let text: Vec<u32> = (0..3000).collect();
    keep(&mut tree, root(), &text[..300]);
    keep(&mut tree, root(), &text);
    // The earlier block; up to a multiple of 2048 tokens; from there on; the incomplete block.
    assert_eq!(shared(&tree), [1, 7, 3, 1]);
    tree.shrink(2999, true);
    assert_eq!(tree.bytes(), 2816);
    tree.shrink(2815, true);
    assert_eq!(tree.bytes(), 2048);
    assert_eq!(found(&mut tree, root(), &text), text[..2048]);
}

#[test]
fn merges_blocks_that_were_stored_separately() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    let text: Vec<u32> = (0..4500).collect();
    for end in (0..4500).step_by(300) {
        keep(&mut tree, root(), &text[..end]);
    }
    let fragmented = tree.fragmented(root(), &text);
    assert_eq!(fragmented.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8]);
    let bytes = tree.bytes();
    for run in fragmented {
        put(&mut tree, &text, &run);
    }
    assert_eq!(shared(&tree), [8, 8, 1]);
    assert_eq!(
        (tree.bytes(), found(&mut tree, root(), &text).len()),
        (bytes, 4200)
    );
    assert!(tree.fragmented(root(), &text).is_empty());
}

/// Merging the spans for one text would split them for the other.
#[test]
fn keeps_spans_that_are_shared_with_other_texts() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    let text: Vec<u32> = (0..2048).collect();
    keep(&mut tree, root(), &text);
    let other: Vec<u32> = (0..1024).chain(5000..6024).collect();
    keep(&mut tree, root(), &other);
    assert_eq!(shared(&tree), [8, 4]);
    assert!(tree.fragmented(root(), &other).is_empty() && tree.fragmented(root(), &text).is_empty());
}

/// Adds files for every block of `text`, with one byte per token.
fn file(tree: &mut Tree<Vec<u32>>, text: &[u32]) {
    let mut parent = root();
    for block in text.chunks(BLOCK_TOKENS) {
        tree.add_file(parent, block, of(block.len() as u64, false));
        parent = parent.child(block);
    }
    tree.touch_path(parent);
}

#[test]
fn finds_blocks_that_are_only_in_files() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    let text: Vec<u32> = (0..600).collect();
    file(&mut tree, &text);
    let in_files = |tree: &mut Tree<Vec<u32>>, text: &[u32]| {
        let found = tree.find(root(), text, Tiers::Both);
        let in_files: Vec<usize> = found.in_files.iter().map(|block| block.tokens).collect();
        (found.in_memory.len(), in_files)
    };
    assert_eq!(in_files(&mut tree, &text), (0, vec![256, 256, 88]));
    assert_eq!(in_files(&mut tree, &text[..300]), (0, vec![256, 44]));
    let first = tree.find(root(), &text, Tiers::Both).in_files[0].key;
    let second = tree.find(root(), &text, Tiers::Both).in_files[1].key;
    assert!(!tree.can_enter_memory(second), "the parent is not in memory");
    assert!(tree.can_enter_memory(first));
    tree.insert_loaded(first, of(256, false), text[..256].to_vec());
    assert!(tree.can_enter_memory(second));
    assert_eq!(in_files(&mut tree, &text), (1, vec![256, 88]));
    assert_eq!(tree.missing(root(), &text).len(), 2);
    // An evicted block is still in its file. Without the file of a block, its descendants are not
    // found.
    tree.shrink(0, true);
    assert_eq!((tree.bytes(), tree.file_bytes()), (0, 600));
    assert!(tree.remove_file_of(first));
    assert_eq!(in_files(&mut tree, &text), (0, vec![]));
    assert!(!tree.remove_file_of(first));
}

#[test]
fn removes_the_least_recently_used_files_completely() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    for token in [1, 2, 3] {
        file(&mut tree, &[token; 300]);
    }
    tree.find(root(), &[1; 300], Tiers::Both);
    assert_eq!(tree.shrink_files(600).len(), 2, "files of the second text");
    assert_eq!(tree.find(root(), &[1; 300], Tiers::Both).in_files.len(), 2);
    assert_eq!(tree.find(root(), &[2; 300], Tiers::Both).in_files, []);
    assert_eq!(tree.shrink_files(0).len(), 4);
    assert!(tree.nodes.is_empty() && tree.children.is_empty());
}

#[test]
fn longer_block_makes_a_file_obsolete() {
    let mut tree = Tree::new(ResumePoints::Anywhere);
    file(&mut tree, &[7; 300]);
    let short = tree.find(root(), &[7; 300], Tiers::Both).in_files[1].key;
    tree.insert_loaded(BlockKey::child(root(), &[7; 256]), of(256, false), Vec::new());
    let parent = root().child(&[7; 256]);
    let longer = (&[7; 50][..], of(50, false), Vec::new());
    assert_eq!(tree.insert(parent, [longer]), [short]);
    assert_eq!(tree.file_bytes(), 256);
}

/// Number of tokens that can be resumed, from memory and from both tiers.
fn resumable(tree: &mut Tree<Vec<u32>>, text: &[u32]) -> (usize, usize) {
    let memory: usize = tree
        .find(root(), text, Tiers::Memory)
        .in_memory
        .iter()
        .map(|(_, tokens)| tokens)
        .sum();
    let found = tree.find(root(), text, Tiers::Both);
    let held: usize = found.in_memory.iter().map(|(_, tokens)| tokens).sum();
    (
        memory,
        held + found.in_files.iter().map(|block| block.tokens).sum::<usize>(),
    )
}

#[test]
fn resumes_texts_at_snapshots_only() {
    let mut tree = Tree::new(ResumePoints::AtSnapshots);
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
    // Two complete blocks, one with a snapshot, and two versions of the third.
    assert_eq!((tree.nodes.len(), tree.bytes()), (4, 512 + 88 + 188));
    assert_eq!(tree.known_tokens(root(), &text), 700);
    assert!(tree.missing(root(), &text[..600]).is_empty());
    assert_eq!(
        tree.missing(root(), &text[..256]).len(),
        1,
        "the block has no snapshot"
    );
    assert_eq!(tree.blocks_of(root(), &text[..600]).len(), 3);
}

/// Snapshots end inside blocks, where a prompt or an earlier turn ended.
#[test]
fn all_blocks_of_a_text_include_shorter_versions() {
    let text: Vec<u32> = (0..1000).collect();
    for resume_points in [ResumePoints::AtSnapshots, ResumePoints::Anywhere] {
        let mut tree = Tree::new(resume_points);
        file(&mut tree, &text[..700]);
        file(&mut tree, &text[..600]);
        file(&mut tree, &text[..300]);
        // Shares more tokens with the text than its own blocks do.
        let diverging = [&text[..710], &[5000; 50]].concat();
        file(&mut tree, &diverging);
        assert_eq!(tree.file_bytes(), 512 + 188 + 88 + 44 + 248);
        // Without the file of an ancestor, its descendants cannot be found until it is written again.
        assert!(tree.remove_file_of(root().child(&text[..256])));
        for key in tree.all_blocks_of(root(), &text) {
            tree.remove_file_of(key);
        }
        let others = match resume_points {
            ResumePoints::AtSnapshots => 248,
            ResumePoints::Anywhere => 0,
        };
        assert_eq!(tree.file_bytes(), others);
    }
}

#[test]
fn snapshot_of_a_file_is_added_to_the_block_in_memory() {
    let mut tree = Tree::new(ResumePoints::AtSnapshots);
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
    tree.insert_loaded(first, of(300, true), text[..256].to_vec());
    assert_eq!(resumable(&mut tree, &text[..300]), (256, 256));
    // A block that arrives later with less content changes nothing.
    tree.insert_loaded(first, of(256, false), text[..256].to_vec());
    assert_eq!(
        (tree.bytes(), resumable(&mut tree, &text[..300])),
        (644, (256, 256))
    );
    tree.remove_file_of(first);
    assert!(!tree.has_file(first));
}

proptest! {
    #[test]
    fn finds_the_last_snapshot_within_a_text(known in proptest::collection::vec(texts(), 1..12), asked in texts()) {
        let mut tree = Tree::new(ResumePoints::AtSnapshots);
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
