//! Templates of `format`, such as `'%s has %d'`.

/// Digits after the decimal point of `%f` without a precision.
const DIGITS: usize = 6;

/// Placeholder of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clause {
    Text,
    Decimal,
    /// Number with this number of digits after the decimal point.
    Fixed(usize),
    Scientific,
    Binary,
    Octal,
    Hex {
        is_upper: bool,
    },
}

impl Clause {
    /// Returns the error of a value of another type.
    pub(super) fn mismatch(self, type_name: &str) -> String {
        let text = match self {
            Self::Text => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, \
                 durations, and timestamps"
            }
            Self::Decimal => "decimal clause can only be used on integers",
            Self::Fixed(_) => "fixed-point clause can only be used on doubles",
            Self::Scientific => "scientific clause can only be used on doubles",
            Self::Binary => "only integers and bools can be formatted as binary",
            Self::Octal => "octal clause can only be used on integers",
            Self::Hex { .. } => "only integers, byte buffers, and strings can be formatted as hex",
        };
        format!("{text}, was given {type_name}")
    }
}

/// Error of a template or of the item with this index.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault<E> {
    Template(String),
    Item(usize, E),
}

/// Replaces the placeholders of a template by the texts of `items` items. Returns the text, and the number of
/// placeholders.
pub(super) fn fill<E>(
    template: &str,
    items: usize,
    write: impl Fn(usize, Clause) -> Result<String, E>,
) -> Result<(String, usize), Fault<E>> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    let mut used = 0;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            text.push('%');
            rest = after;
            continue;
        }
        if after.is_empty() {
            return Err(Fault::Template("unexpected end of string".to_owned()));
        }
        if used == items {
            return Err(Fault::Template(format!("index {used} out of range")));
        }
        let (clause, after) = clause(after)
            .map_err(|reason| Fault::Template(format!("could not parse formatting clause: {reason}")))?;
        text.push_str(&write(used, clause).map_err(|reason| Fault::Item(used, reason))?);
        used += 1;
        rest = after;
    }
    text.push_str(rest);
    Ok((text, used))
}

/// Parses the clause after `%`. Returns the rest.
fn clause(text: &str) -> Result<(Clause, &str), String> {
    let (digits, rest) = match text.strip_prefix('.') {
        None => (DIGITS, text),
        Some(after) => {
            let end = after.find(|c: char| !c.is_ascii_digit());
            let faulty = |reason: &str| format!("error while parsing precision: {reason}");
            let end = end.ok_or_else(|| faulty("could not find end of precision specifier"))?;
            let digits = after[..end].parse().map_err(|_| {
                let reason = if end == 0 { "invalid syntax" } else { "value out of range" };
                let digits = &after[..end];
                faulty(&format!(
                    "error while converting precision to integer: strconv.Atoi: parsing \"{digits}\": {reason}"
                ))
            })?;
            (digits, &after[end..])
        }
    };
    let mut characters = rest.chars();
    let clause = match characters.next() {
        Some('s') => Clause::Text,
        Some('d') => Clause::Decimal,
        Some('f') => Clause::Fixed(digits),
        Some('e') => Clause::Scientific,
        Some('b') => Clause::Binary,
        Some('o') => Clause::Octal,
        Some('x') => Clause::Hex { is_upper: false },
        Some('X') => Clause::Hex { is_upper: true },
        other => {
            let other = other.map_or_else(String::new, String::from);
            return Err(format!("unrecognized formatting clause \"{other}\""));
        }
    };
    Ok((clause, characters.as_str()))
}
