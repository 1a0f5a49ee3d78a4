//! `pub` items of library crates that no other crate uses.
//!
//! The check compares names, not types. An item counts as used if its name occurs in another crate
//! or in a `pub` declaration of its own crate.

use std::collections::{BTreeMap, BTreeSet};

use super::krate::{Crate, Source};
use super::tokens::{Token, closing, without_tests};

/// Crates whose `pub` items are not checked: the binary, and helpers of tests.
const EXEMPT: &[&str] = &["rooflet", "testing"];

struct Item<'s> {
    file: &'s Source,
    line: usize,
    name: String,
}

/// Returns the unused `pub` items. `users` are sources outside the crates.
pub(super) fn faults(crates: &[Crate], users: &[Source]) -> Vec<String> {
    // Each word, and the crates that contain it.
    let mut words = BTreeMap::<&str, BTreeSet<&str>>::new();
    let inside = crates
        .iter()
        .flat_map(|krate| krate.files.iter().map(|file| (krate.name.as_str(), file)));
    for (name, file) in inside.chain(users.iter().map(|file| ("", file))) {
        // Examples are users of their crate.
        let name = if file.path.components().any(|part| part.as_os_str() == "examples") {
            ""
        } else {
            name
        };
        for token in file.tokens.iter().filter(|token| token.is_word()) {
            words.entry(&token.text).or_default().insert(name);
        }
    }
    let mut faults = Vec::new();
    for krate in crates
        .iter()
        .filter(|krate| !EXEMPT.contains(&krate.name.as_str()))
    {
        let mut items = Vec::new();
        let mut declared = BTreeSet::new();
        for file in &krate.files {
            let tokens = without_tests(&file.tokens);
            declarations(&tokens, &mut declared);
            items.extend(pub_items(file, &tokens));
        }
        for item in items {
            let used = words.get(item.name.as_str());
            let elsewhere = used.is_some_and(|crates| crates.iter().any(|name| *name != krate.name));
            if !elsewhere && !declared.contains(&item.name) {
                faults.push(format!(
                    "{}:{}: `{}` is `pub`, and no other crate uses it: make it pub(crate)",
                    item.file.path.display(),
                    item.line,
                    item.name
                ));
            }
        }
    }
    faults
}

/// Returns functions, types, constants and statics that are `pub` without a restriction.
fn pub_items<'s>(file: &'s Source, tokens: &[Token]) -> Vec<Item<'s>> {
    const QUALIFIERS: [&str; 3] = ["const", "async", "unsafe"];
    const KINDS: [&str; 7] = ["fn", "struct", "enum", "trait", "static", "type", "union"];
    let mut items = Vec::new();
    for at in 0..tokens.len() {
        if !tokens[at].is("pub") {
            continue;
        }
        let mut kind = at + 1;
        let mut is_const = false;
        while tokens
            .get(kind)
            .is_some_and(|token| QUALIFIERS.iter().any(|word| token.is(word)))
        {
            is_const |= tokens[kind].is("const");
            kind += 1;
        }
        let Some(token) = tokens.get(kind) else { continue };
        let name = if KINDS.iter().any(|word| token.is(word)) {
            tokens.get(kind + 1)
        } else if is_const {
            Some(token)
        } else {
            None
        };
        if let Some(name) = name {
            items.push(Item {
                file,
                line: name.line,
                name: name.text.clone(),
            });
        }
    }
    items
}

/// Collects the words in the signatures of `pub` items, in their `pub` fields, in enums, and in the
/// heads and types of `impl` blocks. A user of the crate may need these items without their names.
fn declarations(tokens: &[Token], into: &mut BTreeSet<String>) {
    for (at, token) in tokens.iter().enumerate() {
        let is_pub = token.is("pub") && !tokens.get(at + 1).is_some_and(|next| next.is("("));
        if is_pub && tokens.get(at + 1).is_some_and(|next| next.is("enum")) {
            let open = at + tokens[at..].iter().position(|token| token.is("{")).unwrap_or(0);
            let words = tokens[open..closing(tokens, open)]
                .iter()
                .filter(|token| token.is_word());
            into.extend(words.map(|token| token.text.clone()));
            continue;
        }
        // An item that is exported under another name.
        if is_pub && tokens.get(at + 1).is_some_and(|next| next.is("use")) {
            let tree = tokens[at..].iter().take_while(|token| !token.is(";"));
            let tree: Vec<_> = tree.collect();
            let renamed = tree.windows(2).filter(|pair| pair[1].is("as"));
            into.extend(renamed.map(|pair| pair[0].text.clone()));
            continue;
        }
        let is_type = token.is("type") && at > 0 && !tokens[at - 1].is("pub");
        if !is_pub && !token.is("impl") && !is_type {
            continue;
        }
        // The declared name itself is not a use.
        let skip = tokens[at + 1..]
            .iter()
            .take_while(|token| {
                [
                    "fn", "struct", "trait", "type", "const", "static", "async", "unsafe",
                ]
                .iter()
                .any(|word| token.is(word))
            })
            .count();
        let (mut angles, mut rounds) = (0i32, 0i32);
        let start = at + 1 + skip + usize::from(skip > 0);
        for token in tokens.iter().skip(start) {
            match token.text.as_str() {
                "<" => angles += 1,
                ">" => angles -= 1,
                "(" | "[" => rounds += 1,
                ")" | "]" => rounds -= 1,
                "{" | "}" | ";" => break,
                "," if angles <= 0 && rounds <= 0 => break,
                _ if token.is_word() => drop(into.insert(token.text.clone())),
                _ => {}
            }
            if rounds < 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(own: &str, other: &str) -> Vec<String> {
        let crates = [
            Crate::of_texts("own", "", &[("lib.rs", own)]),
            Crate::of_texts("other", "", &[("lib.rs", other)]),
        ];
        let faults = faults(&crates, &[]);
        faults
            .into_iter()
            .filter(|fault| fault.starts_with("src/own"))
            .collect()
    }

    #[test]
    fn rejects_items_that_only_their_own_crate_uses() {
        let own =
            "pub fn used() {} pub fn spare() {} pub(crate) fn fine() { spare() } pub const LIMIT: usize = 1;";
        let faults = check(own, "fn main() { own::used() }");
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(
            faults[0].contains("`spare`") && faults[1].contains("`LIMIT`"),
            "{faults:?}"
        );
    }

    #[test]
    fn accepts_types_of_signatures_and_fields() {
        let own = "pub struct Reply { pub body: Vec<Part> } pub struct Part; pub fn ask(of: &Question) -> Reply {} pub struct Question;";
        assert_eq!(check(own, "ask()"), [""; 0]);
    }
}
