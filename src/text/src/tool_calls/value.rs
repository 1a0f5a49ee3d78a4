//! Types of arguments that models write as plain text. The function's schema determines them.

use crate::grammar::schema::{Kind, dereferenced, listed_values};
use rooflet_inference_api::openai::json::{Json, Members};

/// Maximum depth of nested lists.
const MAX_DEPTH: usize = 100;

/// Maximum number of schemas visited for one value. References may repeat the same schemas.
const MAX_SCHEMAS: usize = 1000;

/// Converts a text to a value that satisfies `schema`. `root` contains the targets of references.
pub(super) fn value(root: &Json, schema: &Json, text: &str) -> Json {
    let string = Json::String(text.to_owned());
    let permitted = |value: &Json| permits(root, schema, value, &mut { MAX_SCHEMAS });
    // If a string is permitted, the text is a string, except for null.
    match serde_json::from_str(text.trim()).ok().or_else(|| python(text)) {
        Some(Json::Null) if permitted(&Json::Null) => Json::Null,
        Some(value) if !permitted(&string) => value,
        Some(_) | None => string,
    }
}

/// Returns true if a schema lists the value or permits its type. Visits at most `left` schemas.
fn permits(root: &Json, schema: &Json, value: &Json, left: &mut usize) -> bool {
    let Some(schema) = dereferenced(root, schema) else {
        return false;
    };
    let Some(fewer) = left.checked_sub(1) else {
        return false;
    };
    *left = fewer;
    if let Some(listed) = listed_values(schema) {
        let is_text = |value: &Json| value.as_str().is_some();
        return listed.contains(value) || (is_text(value) && listed.iter().all(is_text));
    }
    let kind = |word: &Json| {
        let kind = word.as_str().and_then(Kind::of_word);
        kind.is_some_and(|kind| kind.fits(value))
    };
    let mut any = |keyword: &str| match schema.get(keyword) {
        Some(Json::Array(schemas)) => schemas.iter().any(|schema| permits(root, schema, value, left)),
        Some(_) | None => false,
    };
    match schema.get("type") {
        Some(Json::Array(words)) => words.iter().any(kind),
        Some(word) => kind(word),
        None => ["anyOf", "oneOf", "allOf"].into_iter().any(&mut any),
    }
}

/// Parses a Python literal. Templates show models the arguments of earlier calls in this syntax.
fn python(text: &str) -> Option<Json> {
    let mut literal = Literal { rest: text, depth: 0 };
    let value = literal.value()?;
    literal.rest.trim().is_empty().then_some(value)
}

struct Literal<'a> {
    rest: &'a str,
    depth: usize,
}

impl Literal<'_> {
    fn value(&mut self) -> Option<Json> {
        match self.next()? {
            '[' => self.items(']', Self::value).map(Json::Array),
            '{' => {
                let members = self.items('}', |literal| {
                    let quote = literal.next()?;
                    let name = literal.string(quote)?;
                    let value = literal.skip(':').then(|| literal.value())??;
                    Some((name, value))
                })?;
                let mut object = Members::default();
                members
                    .into_iter()
                    .for_each(|(name, value)| object.insert(&name, value));
                Some(Json::Object(object))
            }
            quote @ ('\'' | '"') => self.string(quote).map(Json::String),
            first => self.word(first),
        }
    }

    /// Returns the next character after white space.
    fn next(&mut self) -> Option<char> {
        let rest = self.rest.trim_start();
        let next = rest.chars().next()?;
        self.rest = &rest[next.len_utf8()..];
        Some(next)
    }

    fn skip(&mut self, expected: char) -> bool {
        let after = self.rest.trim_start().strip_prefix(expected);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Parses the items after an opening bracket, with an optional trailing comma.
    fn items<T>(&mut self, close: char, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut items = Vec::new();
        while !self.skip(close) {
            items.push(item(self)?);
            if !self.skip(',') && !self.rest.trim_start().starts_with(close) {
                return None;
            }
        }
        self.depth -= 1;
        Some(items)
    }

    /// Parses a string after its opening quote.
    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.chars();
        loop {
            let c = match chars.next()? {
                c if c == quote => break,
                '\\' => match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'x' => code(&mut chars, 2)?,
                    'u' => code(&mut chars, 4)?,
                    'U' => code(&mut chars, 8)?,
                    c @ ('\\' | '\'' | '"') => c,
                    _ => return None,
                },
                c => c,
            };
            text.push(c);
        }
        self.rest = chars.as_str();
        matches!(quote, '\'' | '"').then_some(text)
    }

    fn word(&mut self, first: char) -> Option<Json> {
        let end = self.rest.find([',', ':', ']', '}']).unwrap_or(self.rest.len());
        let word = format!("{first}{}", self.rest[..end].trim_end());
        self.rest = &self.rest[end..];
        match &*word {
            "True" => Some(Json::Bool(true)),
            "False" => Some(Json::Bool(false)),
            "None" => Some(Json::Null),
            number => {
                let number = serde_json::from_str::<serde_json::Number>(number).ok()?;
                Some(Json::Number(number.into()))
            }
        }
    }
}

/// Parses the code point of an escape with this number of hexadecimal digits.
fn code(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let digits: String = chars.by_ref().take(digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
}
