//! The table of model families. A new family is one file in `families/` and one row of
//! [`FAMILIES`].

mod deepseek;
mod gemma;
mod gemma3;
mod gemma4;
mod glm4;
mod gpt_oss;
mod granite;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_next;
mod smollm3;

use crate::config::Architecture;
use crate::family::FamilyFacts;

/// Families in the files of this module, sorted by name.
static FAMILIES: &[&[FamilyFacts]] = &[
    deepseek::MEMBERS,
    gemma::MEMBERS,
    gemma3::MEMBERS,
    gemma4::MEMBERS,
    glm4::MEMBERS,
    gpt_oss::MEMBERS,
    granite::MEMBERS,
    llama::MEMBERS,
    mistral::MEMBERS,
    mixtral::MEMBERS,
    olmo2::MEMBERS,
    phi3::MEMBERS,
    qwen2::MEMBERS,
    qwen3::MEMBERS,
    qwen3_5::MEMBERS,
    qwen3_next::MEMBERS,
    smollm3::MEMBERS,
];

fn all() -> impl Iterator<Item = &'static FamilyFacts> {
    FAMILIES.iter().copied().flatten()
}

/// Finds the family of a `model_type`.
pub(crate) fn find(model_type: &str) -> Option<&'static FamilyFacts> {
    all().find(|family| family.model_types.contains(&model_type))
}

/// Lists every known `model_type`, for messages.
pub fn names() -> String {
    sorted(all().flat_map(|family| family.model_types).copied())
}

/// Lists every architecture that the engine runs, for messages.
pub fn engine_names() -> String {
    sorted(all().filter_map(|family| family.engine.as_ref().map(Architecture::as_str)))
}

fn sorted(names: impl Iterator<Item = &'static str>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_family_file_has_a_row() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/families");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                entry
                    .unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        let rows: BTreeSet<String> = include_str!("families.rs")
            .lines()
            .filter_map(|line| line.trim().strip_suffix("::MEMBERS,"))
            .map(str::to_owned)
            .collect();
        assert_eq!(files, rows);
        assert_eq!(rows.len(), FAMILIES.len());
    }

    #[test]
    fn no_two_families_share_a_name() {
        let (mut model_types, mut engines) = (BTreeSet::new(), BTreeSet::new());
        for family in all() {
            assert!(!family.model_types.is_empty());
            for model_type in family.model_types {
                assert!(model_types.insert(model_type), "{model_type} is in two families");
            }
            if let Some(engine) = &family.engine {
                let name = engine.as_str();
                assert!(engines.insert(name), "{name} is in two families");
                assert!(
                    family.model_types.contains(&name),
                    "{name} is no model_type of its family"
                );
            }
        }
    }

    #[test]
    fn messages_list_names_in_order() {
        for list in [names(), engine_names()] {
            let names: Vec<&str> = list.split(", ").collect();
            assert!(names.is_sorted() && names.contains(&"llama"), "{list}");
        }
    }
}
