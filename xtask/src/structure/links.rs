//! Relative links of Markdown pages: the file and the heading must exist. Paths in the glossary
//! must exist, too.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Folders with pages, besides the repository's root.
const FOLDERS: &[&str] = &["docs", "examples", ".github"];

/// Returns the broken links of all pages.
pub(super) fn faults(root: &Path) -> io::Result<Vec<String>> {
    let mut pages = markdown_files(root, false)?;
    for folder in FOLDERS {
        pages.extend(markdown_files(&root.join(folder), true)?);
    }
    pages.sort();
    let mut faults = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page)?;
        let name = page.strip_prefix(root).unwrap_or(page).display();
        for target in targets(&text) {
            if let Some(problem) = problem(page, &text, &target) {
                faults.push(format!("{name}: link to {target}: {problem}"));
            }
        }
    }
    let glossary = fs::read_to_string(root.join("docs/glossary.md"))?;
    let missing = glossary_paths(&glossary).filter(|path| !root.join("src").join(path).exists());
    faults.extend(missing.map(|path| format!("docs/glossary.md: src/{path} does not exist")));
    Ok(faults)
}

/// Returns the paths in the last column of the glossary's tables, relative to `src`.
fn glossary_paths(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter_map(|line| line.strip_suffix(" |"));
    let cells = rows.filter_map(|row| row.rsplit_once(" | "));
    cells.flat_map(|(_, cell)| cell.split('`').skip(1).step_by(2))
}

fn markdown_files(folder: &Path, recursive: bool) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && recursive {
            files.extend(markdown_files(&path, true)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the relative targets of `[text](target)` outside of code.
fn targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for line in prose(text) {
        let without_code: String = line.split('`').step_by(2).collect();
        for part in without_code.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                targets.push(target.to_owned());
            }
        }
    }
    targets
}

/// Returns the lines outside of fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn problem(page: &Path, text: &str, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let linked = match path {
        "" => text.to_owned(),
        path => {
            let file = normalized(&page.parent()?.join(path));
            if file.is_dir() {
                return None;
            }
            match fs::read_to_string(&file) {
                Ok(text) => text,
                // Pictures and other files that are not text.
                Err(err) if err.kind() == io::ErrorKind::InvalidData => return None,
                Err(_) => return Some("the file does not exist".to_owned()),
            }
        }
    };
    let exists = anchor.is_empty() || anchors(&linked).any(|known| known == anchor);
    (!exists).then(|| format!("the page has no heading #{anchor}"))
}

/// Resolves `.` and `..` without the file system.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => normal.push(component),
        }
    }
    normal
}

/// Returns the anchors of all headings, in GitHub's form.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_relative_links_outside_of_code() {
        let text = "[a](x.md#b) and `[c](d)` and [e](https://f)\n```\n[g](h)\n```\n[i](#j) [k](../l)";
        assert_eq!(targets(text), ["x.md#b", "#j", "../l"]);
    }

    #[test]
    fn finds_paths_in_the_last_column() {
        let page = "text `a`\n| term | `b` | code |\n| x | y | `c`, `d/e.rs` |\n";
        assert_eq!(glossary_paths(page).collect::<Vec<_>>(), ["c", "d/e.rs"]);
    }

    #[test]
    fn forms_anchors_like_github() {
        let text = "# Placing a large fleet: `-- placement`\n```\n# no heading\n```\n## Who may do what?";
        let found: Vec<_> = anchors(text).collect();
        assert_eq!(found, ["placing-a-large-fleet----placement", "who-may-do-what"]);
    }

    #[test]
    fn reports_missing_files_and_headings() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/page.md");
        let problem = |target: &str| problem(&page, "# Here", target);
        assert_eq!(problem("#here"), None);
        assert_eq!(problem("../README.md"), None);
        assert_eq!(problem("decisions"), None);
        assert!(problem("#there").is_some_and(|problem| problem.contains("#there")));
        assert!(problem("nowhere.md").is_some());
    }
}
