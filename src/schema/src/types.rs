//! JSON types of a schema node.

/// Set of JSON types. A node has none (any type is allowed), one, or two (int-or-string).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const OBJECT: Types = Types(1);
    pub(super) const ARRAY: Types = Types(2);
    pub(super) const STRING: Types = Types(4);
    pub(super) const INTEGER: Types = Types(8);
    pub(super) const NUMBER: Types = Types(16);
    pub(super) const BOOLEAN: Types = Types(32);
    pub(super) const INTEGER_OR_STRING: Types = Types(Self::INTEGER.0 | Self::STRING.0);

    pub(super) fn named(name: &str) -> Types {
        match name {
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            _ => Types(0),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn intersects(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the names in the format of the validator's texts.
    pub(super) fn text(self) -> String {
        const NAMES: [(Types, &str); 6] = [
            (Types::OBJECT, "object"),
            (Types::ARRAY, "array"),
            (Types::INTEGER, "integer"),
            (Types::STRING, "string"),
            (Types::NUMBER, "number"),
            (Types::BOOLEAN, "boolean"),
        ];
        let names: Vec<&str> = NAMES
            .iter()
            .filter(|(each, _)| self.intersects(*each))
            .map(|(_, name)| *name)
            .collect();
        names.join(",")
    }
}
