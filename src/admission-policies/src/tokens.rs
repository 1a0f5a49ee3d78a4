//! Places of the operators in the source of an expression. The parser does not keep them.

/// Operators of two characters, then of one.
const OPERATORS: [&str; 14] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!",
];

/// Returns the operators in their order, with their places in the source.
pub(crate) fn operators(source: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    // True behind a value: an operator that follows has two operands.
    let mut follows_value = false;
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let word = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let quote = &rest[word..];
        let is_prefix = matches!(
            rest[..word].to_ascii_lowercase().as_str(),
            "" | "r" | "b" | "rb" | "br"
        );
        if is_prefix && quote.starts_with(['"', '\'']) {
            let is_raw = rest[..word].contains(['r', 'R']);
            at += word + text_length(quote, is_raw);
            follows_value = true;
        } else if word > 0 {
            if &rest[..word] == "in" {
                found.push(("in", at));
            }
            follows_value = &rest[..word] != "in";
            at += word;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
            let next = rest[operator.len()..].trim_start();
            // The sign of a number is part of the number.
            let is_sign =
                *operator == "-" && !follows_value && next.starts_with(|c: char| c.is_ascii_digit());
            if !is_sign {
                found.push((*operator, at));
            }
            follows_value = false;
            at += operator.len();
        } else {
            if !first.is_whitespace() {
                follows_value = [')', ']', '}'].contains(&first);
            }
            at += first.len_utf8();
        }
    }
    found
}

/// Returns the length of the text literal at the start of the source.
fn text_length(source: &str, is_raw: bool) -> usize {
    let quote = &source[..1];
    let triple = quote.repeat(3);
    let quote = if source.starts_with(&triple) {
        triple.as_str()
    } else {
        quote
    };
    let mut at = quote.len();
    while let Some(next) = source[at..].chars().next() {
        if source[at..].starts_with(quote) {
            return at + quote.len();
        }
        at += next.len_utf8();
        if next == '\\' && !is_raw {
            at += source[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_found_outside_of_texts_and_numbers() {
        let check =
            |source: &str, expect: &[(&str, usize)]| assert_eq!(operators(source), expect, "{source}");
        check("a == 'x == y' + \"-\\\"-\"", &[("==", 2), ("+", 14)]);
        check("-1 - -2", &[("-", 3)]);
        check("-a - 1", &[("-", 0), ("-", 3)]);
        check(
            "r'\\' in [b'+'] // a + b\n&& !x",
            &[("in", 5), ("&&", 24), ("!", 27)],
        );
        check("'''a'b + ''' <= index", &[("<=", 13)]);
    }
}
