//! Random prompts of a given length.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Common words, one or two tokens each.
const WORDS: &[&str] = &[
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job",
    "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power",
    "hour", "game", "line", "end", "member",
];

/// Relation of word count and token count on a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Length {
    /// Tokens of the chat template.
    fixed: f64,
    per_word: f64,
}

impl Length {
    /// Computes the relation from the word and token counts of two prompts.
    pub(super) fn of_trials((few, few_tokens): (u32, u64), (many, many_tokens): (u32, u64)) -> Self {
        let per_word = (many_tokens as f64 - few_tokens as f64) / f64::from(many - few);
        let per_word = per_word.max(0.1);
        Self {
            per_word,
            fixed: (few_tokens as f64 - per_word * f64::from(few)).max(0.0),
        }
    }

    pub(super) fn words(&self, tokens: u32) -> u32 {
        ((f64::from(tokens) - self.fixed) / self.per_word)
            .round()
            .max(1.0) as u32
    }
}

/// Returns a text of `words` words that differs for each `seed` from the first word on.
pub(super) fn text(words: u32, seed: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let chosen: Vec<&str> = (0..words)
        .map(|_| WORDS[random.random_range(0..WORDS.len())])
        .collect();
    chosen.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_computed_from_two_trials() {
        // 12 tokens of template, 1.5 per word.
        let length = Length::of_trials((20, 42), (200, 312));
        assert_eq!(length.words(1512), 1000);
        assert_eq!(length.words(1), 1, "never empty");
    }

    #[test]
    fn different_seeds_give_different_texts_from_the_first_word() {
        let start = |seed| text(500, seed).split(' ').take(8).collect::<Vec<_>>().join(" ");
        assert_eq!(start(1), start(1));
        assert_ne!(start(1), start(2));
        assert_eq!(text(500, 3).split(' ').count(), 500);
    }
}
