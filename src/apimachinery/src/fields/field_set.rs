//! `FieldSet`: a set of fields, as a tree of path elements.

use std::cmp::Ordering;

use super::path_element::PathElement;

/// Set of fields of an object. A field in the set does not imply the fields below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Sorted by element. No node is empty.
    nodes: Vec<(PathElement, Node)>,
}

/// Field of a set: whether it belongs to the set, and the set of fields below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) is_member: bool,
    pub(super) children: FieldSet,
}

impl Node {
    pub(super) fn leaf() -> Self {
        Self {
            is_member: true,
            children: FieldSet::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_member && self.children.is_empty()
    }
}

/// Operation on two sets. States what stays of a node that only one side has.
#[derive(Clone, Copy)]
struct Combine {
    keeps_left: bool,
    keeps_right: bool,
    both: fn(&Node, &Node) -> Node,
}

const UNION: Combine = Combine {
    keeps_left: true,
    keeps_right: true,
    both: |a, b| Node {
        is_member: a.is_member || b.is_member,
        children: a.children.union(&b.children),
    },
};

const INTERSECTION: Combine = Combine {
    keeps_left: false,
    keeps_right: false,
    both: |a, b| Node {
        is_member: a.is_member && b.is_member,
        children: a.children.intersection(&b.children),
    },
};

const DIFFERENCE: Combine = Combine {
    keeps_left: true,
    keeps_right: false,
    both: |a, b| Node {
        is_member: a.is_member && !b.is_member,
        children: a.children.difference(&b.children),
    },
};

const WITHOUT: Combine = Combine {
    keeps_left: true,
    keeps_right: false,
    both: |a, b| {
        if b.is_member {
            return Node::default();
        }
        Node {
            is_member: a.is_member,
            children: a.children.without(&b.children),
        }
    },
};

impl FieldSet {
    /// Returns the set of the fields at these paths of names: `&[&["spec"], &["metadata", "name"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path.iter().map(|name| PathElement::field(name)));
        }
        set
    }

    pub(super) fn of_nodes(mut nodes: Vec<(PathElement, Node)>) -> Self {
        nodes.retain(|(_, node)| !node.is_empty());
        if !nodes.is_sorted_by(|(a, _), (b, _)| a < b) {
            nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
            nodes.dedup_by(|(a, dropped), (b, kept)| {
                let is_same = a == b;
                if is_same {
                    *kept = (UNION.both)(kept, dropped);
                }
                is_same
            });
        }
        Self { nodes }
    }

    /// Adds the field at a path. The fields above it are not added.
    pub(super) fn insert(&mut self, path: impl IntoIterator<Item = PathElement>) {
        let mut node = None;
        let mut set = self;
        for element in path {
            let index = match set.nodes.binary_search_by(|(other, _)| other.cmp(&element)) {
                Ok(index) => index,
                Err(index) => {
                    set.nodes.insert(index, (element, Node::default()));
                    index
                }
            };
            let (_, next) = &mut set.nodes[index];
            node = Some(&mut next.is_member);
            set = &mut next.children;
        }
        if let Some(is_member) = node {
            *is_member = true;
        }
    }

    pub(super) fn nodes(&self) -> &[(PathElement, Node)] {
        &self.nodes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn get(&self, element: &PathElement) -> Option<&Node> {
        let index = self
            .nodes
            .binary_search_by(|(other, _)| other.cmp(element))
            .ok()?;
        self.nodes.get(index).map(|(_, node)| node)
    }

    pub(super) fn contains(&self, path: &[PathElement]) -> bool {
        let Some((last, parents)) = path.split_last() else {
            return false;
        };
        let parent = parents
            .iter()
            .try_fold(self, |set, element| set.get(element).map(|node| &node.children));
        parent
            .and_then(|set| set.get(last))
            .is_some_and(|node| node.is_member)
    }

    /// Returns the fields of either set.
    pub(super) fn union(&self, other: &Self) -> Self {
        self.combine(other, UNION)
    }

    /// Returns the fields of both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.combine(other, INTERSECTION)
    }

    /// Returns the fields of this set that `other` does not have. Fields below a field of `other`
    /// stay.
    pub(super) fn difference(&self, other: &Self) -> Self {
        self.combine(other, DIFFERENCE)
    }

    /// Returns the fields of this set that are neither fields of `other` nor below one.
    pub(super) fn without(&self, other: &Self) -> Self {
        self.combine(other, WITHOUT)
    }

    fn combine(&self, other: &Self, rule: Combine) -> Self {
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        let mut nodes = Vec::with_capacity(self.nodes.len());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            match order {
                Ordering::Less => nodes.extend(left.next().filter(|_| rule.keeps_left).cloned()),
                Ordering::Greater => nodes.extend(right.next().filter(|_| rule.keeps_right).cloned()),
                Ordering::Equal => {
                    if let (Some((element, a)), Some((_, b))) = (left.next(), right.next()) {
                        let node = (rule.both)(a, b);
                        if !node.is_empty() {
                            nodes.push((element.clone(), node));
                        }
                    }
                }
            }
        }
        Self { nodes }
    }

    /// Returns the paths of all fields, in the order in which kube-apiserver lists conflicts: the
    /// fields of a level, then the fields below each of them.
    pub(super) fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut paths = Vec::new();
        self.collect_paths(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &mut Vec<PathElement>, paths: &mut Vec<Vec<PathElement>>) {
        for (element, _) in self.nodes.iter().filter(|(_, node)| node.is_member) {
            let mut path = prefix.clone();
            path.push(element.clone());
            paths.push(path);
        }
        for (element, node) in &self.nodes {
            prefix.push(element.clone());
            node.children.collect_paths(prefix, paths);
            prefix.pop();
        }
    }
}

/// Returns the text of a path: `.spec.env[name="A"].value`.
pub(super) fn path_text(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(paths: &[&str]) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            set.insert(path.split('.').map(PathElement::field));
        }
        set
    }

    fn texts(set: &FieldSet) -> Vec<String> {
        set.paths()
            .iter()
            .map(|path| path_text(path).trim_start_matches('.').to_owned())
            .collect()
    }

    #[test]
    fn difference_keeps_fields_below_a_removed_field() {
        let all = set(&["a", "a.b", "a.b.c", "d"]);
        assert_eq!(texts(&all.difference(&set(&["a"]))), ["d", "a.b", "a.b.c"]);
        assert_eq!(texts(&all.without(&set(&["a.b"]))), ["a", "d"]);
        assert_eq!(
            texts(&set(&["a.b.c"]).without(&set(&["a"]))),
            Vec::<String>::new()
        );
        assert_eq!(
            texts(&set(&["a"]).difference(&set(&["a.b"]))),
            ["a"],
            "a field below does not remove the field above"
        );
    }

    #[test]
    fn membership_is_exact() {
        let set = set(&["a.b"]);
        let path = |text: &str| -> Vec<PathElement> { text.split('.').map(PathElement::field).collect() };
        assert!(set.contains(&path("a.b")));
        assert!(!set.contains(&path("a")));
        assert!(!set.contains(&path("a.b.c")));
        assert!(!set.contains(&[]));
    }

    pub(crate) fn any_set() -> impl Strategy<Value = FieldSet> {
        let path = prop::collection::vec("[a-c]", 1..4);
        prop::collection::vec(path, 0..8).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in paths {
                set.insert(path.iter().map(|name| PathElement::field(name)));
            }
            set
        })
    }

    proptest! {
        #[test]
        fn sets_follow_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
            prop_assert_eq!(a.intersection(&b), a.difference(&a.difference(&b)));
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert!(a.without(&a).is_empty());
            for path in a.union(&b).paths() {
                prop_assert!(a.contains(&path) || b.contains(&path));
                prop_assert_eq!(a.difference(&b).contains(&path), a.contains(&path) && !b.contains(&path));
            }
        }
    }
}
