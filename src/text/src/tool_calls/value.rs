//! Arguments that models write as bare text: what values they are is for the function's schema to
//! say.

use crate::grammar::schema::{Kind, followed, listed_values};
use rooflet_inference_api::openai::json::{Json, Members};

/// Lists inside lists.
const MAX_DEPTH: usize = 100;

/// Schemas that are looked at for one value: references may lead to the same ones again and again.
const MAX_SCHEMAS: usize = 1000;

/// The value that a text is where `schema` asks for one; `root` is what its references are in.
pub(super) fn value(root: &Json, schema: &Json, text: &str) -> Json {
    let string = Json::String(text.to_owned());
    let wanted = |value: &Json| wants(root, schema, value, &mut { MAX_SCHEMAS });
    // A string's text is not to be read as anything else, but that there is none.
    match serde_json::from_str(text.trim()).ok().or_else(|| python(text)) {
        Some(Json::Null) if wanted(&Json::Null) => Json::Null,
        Some(value) if !wanted(&string) => value,
        Some(_) | None => string,
    }
}

/// Whether a schema names such a value, or its kind; as far as is seen from as many schemas as are
/// `left`.
fn wants(root: &Json, schema: &Json, value: &Json, left: &mut usize) -> bool {
    let Some(schema) = followed(root, schema) else {
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
        Some(Json::Array(schemas)) => schemas.iter().any(|schema| wants(root, schema, value, left)),
        Some(_) | None => false,
    };
    match schema.get("type") {
        Some(Json::Array(words)) => words.iter().any(kind),
        Some(word) => kind(word),
        None => ["anyOf", "oneOf", "allOf"].into_iter().any(&mut any),
    }
}

/// What Python prints and reads: templates show models the arguments of earlier calls so.
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
                    let value = literal.takes(':').then(|| literal.value())??;
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

    /// The next character that is no space.
    fn next(&mut self) -> Option<char> {
        let rest = self.rest.trim_start();
        let next = rest.chars().next()?;
        self.rest = &rest[next.len_utf8()..];
        Some(next)
    }

    fn takes(&mut self, expected: char) -> bool {
        let behind = self.rest.trim_start().strip_prefix(expected);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    /// Behind the opening bracket. A comma may stand behind the last one.
    fn items<T>(&mut self, close: char, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(item(self)?);
            if !self.takes(',') && !self.rest.trim_start().starts_with(close) {
                return None;
            }
        }
        self.depth -= 1;
        Some(items)
    }

    /// Behind the opening quote.
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

/// A character by so many digits of its number.
fn code(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let digits: String = chars.by_ref().take(digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
}
