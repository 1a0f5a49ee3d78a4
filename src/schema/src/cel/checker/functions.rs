//! Overloads of the functions that rules can call.

use std::{collections::HashMap, sync::LazyLock};

use super::types::{Bindings, Type};

/// Overload of a function.
#[derive(Debug)]
pub(super) struct Overload {
    pub(super) id: &'static str,
    /// Types of the target of a method and of the arguments. Parameters are positions in
    /// [`PARAMETERS`].
    arguments: Vec<Type<'static>>,
    result: Type<'static>,
}

const PARAMETERS: [char; 5] = ['A', 'B', 'K', 'V', 'T'];

/// Overloads by the name of the function. Names of methods start with a dot.
static FUNCTIONS: LazyLock<Functions> = LazyLock::new(|| parsed(include_str!("functions.txt")));

/// Functions of expressions that create JSON patches.
static OF_PATCHES: LazyLock<Functions> =
    LazyLock::new(|| parsed("jsonpatch.escapeKey string_jsonpatch_escapeKey_string (string) string"));

type Functions = HashMap<&'static str, Vec<Overload>>;

fn parsed(lines: &'static str) -> Functions {
    let mut functions = Functions::new();
    for line in lines.lines() {
        if line.starts_with('#') {
            continue;
        }
        let mut words = line.split(' ');
        let mut word = || words.next().expect("four words");
        let (name, id, mut arguments, mut result) = (word(), word(), word(), word());
        let overload = Overload {
            id,
            arguments: types(&mut arguments),
            result: type_named(&mut result),
        };
        functions.entry(name).or_default().push(overload);
    }
    functions
}

/// Returns the overloads of a function, or of a method if the name starts with a dot.
pub(super) fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

/// Returns the overloads of a function of JSON patches.
pub(super) fn of_patches(name: &str) -> Option<&'static [Overload]> {
    OF_PATCHES.get(name).map(Vec::as_slice)
}

impl Overload {
    /// Returns the argument types and the result type with fresh type parameters.
    pub(super) fn instantiate<'d>(&self, bindings: &mut Bindings<'d>) -> (Vec<Type<'d>>, Type<'d>) {
        let mut fresh: [Option<Type<'d>>; PARAMETERS.len()] = [const { None }; PARAMETERS.len()];
        let mut arguments = Vec::with_capacity(self.arguments.len());
        for argument in &self.arguments {
            arguments.push(renamed(argument, &mut fresh, bindings));
        }
        let result = renamed(&self.result, &mut fresh, bindings);
        (arguments, result)
    }
}

fn renamed<'d>(of: &Type<'d>, fresh: &mut [Option<Type<'d>>], bindings: &mut Bindings<'d>) -> Type<'d> {
    if let Type::Parameter(letter) = of {
        fresh[*letter].get_or_insert_with(|| bindings.fresh()).clone()
    } else {
        of.with_parts(&mut |part| renamed(part, fresh, bindings))
    }
}

/// Parses a list of types in parentheses at the start of `rest`, and removes it.
fn types(rest: &mut &'static str) -> Vec<Type<'static>> {
    let mut types = Vec::new();
    *rest = rest.strip_prefix('(').expect("an opening parenthesis");
    while !rest.starts_with(')') {
        types.push(type_named(rest));
        *rest = rest.strip_prefix(',').unwrap_or(*rest);
    }
    *rest = &rest[1..];
    types
}

/// Parses the type at the start of `rest`, and removes it.
fn type_named(rest: &mut &'static str) -> Type<'static> {
    let end = rest.find(['(', ')', ',']).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    *rest = after;
    let parameters = if after.starts_with('(') {
        types(rest)
    } else {
        Vec::new()
    };
    let letter = PARAMETERS.iter().position(|letter| name.chars().eq([*letter]));
    if let Some(letter) = letter {
        return Type::Parameter(letter);
    }
    match (name, &parameters[..]) {
        ("bool", []) => Type::Bool,
        ("int", []) => Type::Int,
        ("uint", []) => Type::Uint,
        ("double", []) => Type::Double,
        ("string", []) => Type::Text,
        ("bytes", []) => Type::Bytes,
        ("timestamp", []) => Type::Timestamp,
        ("duration", []) => Type::Duration,
        ("dyn", []) => Type::Dyn,
        ("type", [of]) => Type::meta(of.clone()),
        ("list", [item]) => Type::list(item.clone()),
        ("map", [key, value]) => Type::map(key.clone(), value.clone()),
        ("optional", [content]) => Type::optional(content.clone()),
        ("IP" | "CIDR", []) => Type::Opaque(name, None),
        (_, []) => Type::Library(name),
        (_, _) => panic!("a type without parameters, not {name}"),
    }
}
