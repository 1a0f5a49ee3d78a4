//! Chip names in common notations: `MacBook Air M4 (10-core GPU)`, `m4max`, `A18 Pro`.

/// Chips of phones and tablets that appear in published tables: name, generation of the Mac chip
/// with the same GPU cores, GPU cores, GB/s, GiB. The source is Apple's press releases; the
/// bandwidth follows from the data rate of the memory.
pub const PHONES: &[(&str, u32, u32, f64, u64)] = &[
    ("Apple A17 Pro", 3, 6, 51.2, 8),
    ("Apple A18", 4, 5, 60.0, 8),
    ("Apple A18 Pro", 4, 6, 60.0, 8),
    ("Apple A19", 5, 5, 68.3, 8),
    ("Apple A19 Pro", 5, 6, 76.8, 12),
];

/// Returns all chip names in a text in Apple's notation: `m4 max (40-core)` → `Apple M4 Max`.
pub fn chip_names(text: &str) -> Vec<String> {
    let lower = text.to_ascii_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let mut names = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let number = word.strip_prefix(['m', 'a']).filter(|rest| !rest.is_empty());
        let Some(number) = number else { continue };
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        let glued = &number[digits.len()..];
        if digits.is_empty() {
            continue;
        }
        let next = if glued.is_empty() {
            words.get(at + 1).copied().unwrap_or_default()
        } else {
            glued
        };
        let tier = match next {
            "pro" => " Pro",
            "max" => " Max",
            "ultra" => " Ultra",
            // A misspelt tier stays in the name, so that the lookup fails and does not return the
            // base chip.
            _ if is_nearly_a_tier(next) => &format!(" {next}"),
            _ if glued.is_empty() => "",
            _ => continue,
        };
        let letter = if word.starts_with('m') { 'M' } else { 'A' };
        names.push(format!("Apple {letter}{digits}{tier}"));
    }
    names.dedup();
    names
}

/// Returns whether the word is a misspelt or unknown tier: one letter is missing, extra, wrong or
/// swapped.
fn is_nearly_a_tier(word: &str) -> bool {
    // Ordinary words that differ from a tier by one letter, as in `M4 Mac mini` and `the M4 may`.
    const WORDS: [&str; 3] = ["mac", "man", "may"];
    let near = |tier: &&str| {
        let (word, tier): (Vec<char>, Vec<char>) = (word.chars().collect(), tier.chars().collect());
        let same = |a: &[char], b: &[char]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let head = same(&word, &tier);
        let (mut word, mut tier) = (word[head..].to_vec(), tier[head..].to_vec());
        word.reverse();
        tier.reverse();
        let tail = same(&word, &tier);
        let swapped = |a: &[char], b: &[char]| matches!((a, b), ([a, b], [c, d]) if a == d && b == c);
        let (word, tier) = (&word[tail..], &tier[tail..]);
        word.len().max(tier.len()) <= 1 || swapped(word, tier)
    };
    word.len() > 1
        && !WORDS.contains(&word)
        && (word == "extreme" || ["pro", "max", "ultra"].iter().any(near))
}

/// Parses the number of GPU cores: `M4 Max 40-core GPU` → 40. CPU cores are ignored.
pub fn cores_in(text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase().replace('-', " ");
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    words.windows(2).enumerate().find_map(|(at, pair)| {
        let cores = matches!(pair[1], "core" | "cores" | "gpu");
        let cpu = words.get(at + 2) == Some(&"cpu");
        (cores && !cpu).then(|| pair[0].parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_chip_names_in_prose() {
        let cases = [
            ("Apple M4 Pro", "Apple M4 Pro"),
            ("m4 max", "Apple M4 Max"),
            ("MacBook Air M4 (10-core GPU)", "Apple M4"),
            ("M2Ultra", "Apple M2 Ultra"),
            ("A18 Pro", "Apple A18 Pro"),
        ];
        for (text, name) in cases {
            assert_eq!(chip_names(text), [name], "{text}");
        }
        for text in [
            "M4 Maxx",
            "m4 ulrta",
            "M3 Utlra",
            "Apple M4 Por",
            "M4 Mx",
            "M4 Extreme",
        ] {
            let misspelt = text.to_ascii_lowercase();
            let tier = misspelt.rsplit(' ').next().unwrap_or_default();
            assert!(chip_names(text)[0].ends_with(tier), "{text}");
        }
        for text in [
            "M4 Mac mini",
            "M4 may do",
            "M4 16 GB",
            "M4, two of them",
            "M4 Air",
            "M4 GPU",
        ] {
            assert_eq!(chip_names(text), ["Apple M4"], "{text}");
        }
        assert_eq!(chip_names("M3/M4"), ["Apple M3", "Apple M4"]);
        assert!(chip_names("RTX 4090").is_empty() && chip_names("MacBook Pro").is_empty());
        assert_eq!(cores_in("M4 Max 40-core GPU"), Some(40));
        assert_eq!(cores_in("M4 Pro, 14-core CPU"), None);
    }
}
