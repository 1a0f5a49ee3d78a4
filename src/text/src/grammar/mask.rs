//! Logits masks.

/// Permitted tokens: one bit per token of the model's vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    words: Box<[u64]>,
    size: usize,
}

impl Mask {
    pub(super) fn none(size: usize) -> Self {
        Self {
            words: vec![0; size.div_ceil(64)].into(),
            size,
        }
    }

    /// Permits one token.
    pub fn only(size: usize, token: u32) -> Self {
        let mut mask = Self::none(size);
        mask.allow(token);
        mask
    }

    /// Permits all tokens except these.
    pub fn without(size: usize, tokens: &[u32]) -> Self {
        let mut mask = Self::none(size);
        mask.words.fill(u64::MAX);
        if let Some(last) = mask.words.last_mut() {
            *last >>= (64 - size % 64) % 64;
        }
        tokens.iter().for_each(|token| mask.forbid(*token));
        mask
    }

    /// Returns the size in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Permits a token. Tokens beyond the model's vocabulary are ignored.
    pub(super) fn allow(&mut self, token: u32) {
        if (token as usize) < self.size {
            self.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    /// Excludes a token.
    pub(super) fn forbid(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word &= !(1 << (token % 64));
        }
    }

    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.size && self.words[token as usize / 64] >> (token % 64) & 1 == 1
    }

    /// Returns the intersection, or `None` if it is empty.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let both = self
            .words
            .iter()
            .zip(&other.words)
            .map(|(one, other)| one & other);
        let mask = Self {
            words: both.collect(),
            size: self.size,
        };
        (!mask.is_empty()).then_some(mask)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns the number of permitted tokens.
    pub(super) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Appends one value per token.
    pub fn append_to(&self, allowed: &mut Vec<bool>) {
        let mut left = self.size;
        for word in &self.words {
            let bits: [bool; 64] = std::array::from_fn(|bit| word >> bit & 1 == 1);
            allowed.extend_from_slice(&bits[..left.min(64)]);
            left = left.saturating_sub(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mask;

    #[test]
    fn mask_has_exactly_one_value_per_token() {
        for size in [1, 63, 64, 65, 130] {
            let mut mask = Mask::without(size, &[0, 64, 9999]);
            let mut values = vec![true; 3];
            mask.append_to(&mut values);
            let expected = (0..size).map(|token| token != 0 && token != 64);
            assert_eq!(values.split_off(3), expected.collect::<Vec<bool>>(), "{size}");
            assert_eq!(mask.and(&Mask::none(size)), None);
            mask.allow(0);
            mask.allow(u32::try_from(size).unwrap());
            assert_eq!(mask.count() as usize, size - usize::from(size > 64));
        }
    }
}
