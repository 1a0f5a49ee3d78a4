//! Page of conditions and reasons.

use rooflet_api::reasons::{ConditionEntry, Part, ReasonEntry, reference};

use super::markdown::{NOTICE, codes, table};

pub(super) fn page() -> anyhow::Result<String> {
    let reference = reference()?;
    let mut page = format!("{NOTICE}# Conditions and reasons\n\n{}", reference.intro);
    for section in reference.sections {
        page.push_str(&format!("\n## {}\n", section.title));
        for part in section.parts {
            page.push('\n');
            page.push_str(&match part {
                Part::Text(text) => text,
                Part::Conditions(entries) => conditions(&entries),
                Part::Reasons(entries) => reasons(&entries),
            });
        }
    }
    Ok(page)
}

fn conditions(entries: &[ConditionEntry]) -> String {
    let row = |entry: &ConditionEntry| [codes(&entry.types), entry.meaning.clone(), entry.symptom.clone()];
    let rows: Vec<_> = entries.iter().map(row).collect();
    table(["condition", "True means", "symptom if not True"], &rows)
}

fn reasons(entries: &[ReasonEntry]) -> String {
    let row = |entry: &ReasonEntry| {
        [
            codes(&entry.reasons),
            entry.on.clone().unwrap_or_default(),
            entry.meaning.clone(),
            entry.remedy.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    table(["reason", "where", "meaning", "remedy"], &rows)
}
