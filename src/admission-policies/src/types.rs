//! Types of CEL expressions, as far as they are certain.

use std::fmt;

use rooflet_apimachinery::schema::cel::dynamic::COMPOSED;

/// Type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Type {
    /// The checker does not infer the type.
    Unknown,
    /// The type is known at run time only.
    Dyn,
    /// Type without parameters, by its CEL name.
    Simple(&'static str),
    List(Box<Type>),
    Map(Box<Type>, Box<Type>),
    Optional(Box<Type>),
    Record(&'static Record),
    /// Object literal, by the name of its type.
    Literal(String),
    /// Composed variables of a policy.
    Composed(Vec<(String, Type)>),
}

/// Name of the type of an operation of a JSON patch.
pub(crate) const PATCH: &str = "JSONPatch";
/// Name of the type of a configuration.
pub(crate) const OBJECT: &str = "Object";

pub(crate) const BOOL: Type = Type::Simple("bool");
pub(crate) const INT: Type = Type::Simple("int");
pub(crate) const UINT: Type = Type::Simple("uint");
pub(crate) const DOUBLE: Type = Type::Simple("double");
pub(crate) const STRING: Type = Type::Simple("string");
pub(crate) const BYTES: Type = Type::Simple("bytes");
pub(crate) const NULL: Type = Type::Simple("null_type");
pub(crate) const TIMESTAMP: Type = Type::Simple("google.protobuf.Timestamp");
pub(crate) const DURATION: Type = Type::Simple("google.protobuf.Duration");

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown | Self::Dyn => f.write_str("dyn"),
            Self::Simple(name) => f.write_str(name),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Record(record) => f.write_str(record.name),
            Self::Literal(name) => f.write_str(name),
            Self::Composed(_) => f.write_str("kubernetes.variables"),
        }
    }
}

impl Type {
    pub(crate) fn list_of(item: Self) -> Self {
        Self::List(Box::new(item))
    }

    /// Returns the type of a field, or a problem with its selection.
    pub(crate) fn field(&self, field: &str) -> Result<Self, String> {
        let undefined = || format!("undefined field '{field}'");
        match self {
            Self::Unknown => Ok(Self::Unknown),
            Self::Dyn => Ok(Self::Dyn),
            Self::Map(_, value) => Ok((**value).clone()),
            Self::Optional(inner) => Ok(Self::Optional(Box::new(inner.field(field)?))),
            Self::Record(record) => {
                let found = record.fields.iter().find(|(name, _)| *name == field);
                found.map(|(_, field)| field.of()).ok_or_else(undefined)
            }
            Self::Literal(name) if name == PATCH => match field {
                "op" | "path" | "from" => Ok(STRING),
                _ => Ok(Self::Dyn),
            },
            Self::Literal(_) => Ok(Self::Dyn),
            Self::Composed(variables) => {
                let found = variables.iter().find(|(name, _)| name == field);
                found.map(|(_, of)| of.clone()).ok_or_else(undefined)
            }
            Self::Simple(_) | Self::List(_) => Err(format!("type '{self}' does not support field selection")),
        }
    }

    /// Returns the type of the items of a list, the values of a map, or the keys of a map in a loop.
    pub(crate) fn member(&self) -> Self {
        match self {
            Self::Dyn => Self::Dyn,
            Self::List(inner) | Self::Map(_, inner) => (**inner).clone(),
            Self::Unknown
            | Self::Simple(_)
            | Self::Optional(_)
            | Self::Record(_)
            | Self::Literal(_)
            | Self::Composed(_) => Self::Unknown,
        }
    }

    /// Returns false if no value has both types.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, _) => true,
            (Self::List(own), Self::List(other)) => own.may_be(other),
            (own, other) => own == other,
        }
    }

    /// Returns the type of the variable of a loop.
    pub(crate) fn element(&self) -> Self {
        if let Self::Map(key, _) = self {
            (**key).clone()
        } else {
            self.member()
        }
    }

    /// Returns the type of a value that has one of two types.
    pub(crate) fn join(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Dyn, _) | (_, Self::Dyn) => Self::Dyn,
            (_, _) => Self::Unknown,
        }
    }
}

/// Declared object type.
#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    name: &'static str,
    fields: &'static [(&'static str, Field)],
}

#[derive(Debug, PartialEq)]
enum Field {
    Bool,
    Int,
    Text,
    Time,
    Dyn,
    Texts,
    TextMap,
    TextListMap,
    Record(&'static Record),
    Records(&'static Record),
}

impl Field {
    fn of(&self) -> Type {
        let map = |value: Type| Type::Map(Box::new(STRING), Box::new(value));
        match self {
            Self::Bool => BOOL,
            Self::Int => INT,
            Self::Text => STRING,
            Self::Time => TIMESTAMP,
            Self::Dyn => Type::Dyn,
            Self::Texts => Type::list_of(STRING),
            Self::TextMap => map(STRING),
            Self::TextListMap => map(Type::list_of(STRING)),
            Self::Record(record) => Type::Record(record),
            Self::Records(record) => Type::list_of(Type::Record(record)),
        }
    }
}

const KIND: Record = Record {
    name: "kubernetes.GroupVersionKind",
    fields: &[
        ("group", Field::Text),
        ("version", Field::Text),
        ("kind", Field::Text),
    ],
};

const RESOURCE: Record = Record {
    name: "kubernetes.GroupVersionResource",
    fields: &[
        ("group", Field::Text),
        ("version", Field::Text),
        ("resource", Field::Text),
    ],
};

const USER: Record = Record {
    name: "kubernetes.UserInfo",
    fields: &[
        ("username", Field::Text),
        ("uid", Field::Text),
        ("groups", Field::Texts),
        ("extra", Field::TextListMap),
    ],
};

static REQUEST: Record = Record {
    name: "kubernetes.AdmissionRequest",
    fields: &[
        ("kind", Field::Record(&KIND)),
        ("resource", Field::Record(&RESOURCE)),
        ("subResource", Field::Text),
        ("requestKind", Field::Record(&KIND)),
        ("requestResource", Field::Record(&RESOURCE)),
        ("requestSubResource", Field::Text),
        ("name", Field::Text),
        ("namespace", Field::Text),
        ("operation", Field::Text),
        ("userInfo", Field::Record(&USER)),
        ("dryRun", Field::Bool),
        ("options", Field::Dyn),
    ],
};

const NAMESPACE_METADATA: Record = Record {
    name: "kubernetes.NamespaceMetadata",
    fields: &[
        ("name", Field::Text),
        ("generateName", Field::Text),
        ("namespace", Field::Text),
        ("labels", Field::TextMap),
        ("annotations", Field::TextMap),
        ("UID", Field::Text),
        ("creationTimestamp", Field::Time),
        ("deletionGracePeriodSeconds", Field::Int),
        ("deletionTimestamp", Field::Time),
        ("generation", Field::Int),
        ("resourceVersion", Field::Text),
        ("finalizers", Field::Texts),
    ],
};

const NAMESPACE_CONDITION: Record = Record {
    name: "kubernetes.NamespaceCondition",
    fields: &[
        ("status", Field::Text),
        ("type", Field::Text),
        ("lastTransitionTime", Field::Time),
        ("message", Field::Text),
        ("reason", Field::Text),
    ],
};

const NAMESPACE_SPEC: Record = Record {
    name: "kubernetes.NamespaceSpec",
    fields: &[("finalizers", Field::Texts)],
};

const NAMESPACE_STATUS: Record = Record {
    name: "kubernetes.NamespaceStatus",
    fields: &[
        ("conditions", Field::Records(&NAMESPACE_CONDITION)),
        ("phase", Field::Text),
    ],
};

static NAMESPACE: Record = Record {
    name: "kubernetes.Namespace",
    fields: &[
        ("metadata", Field::Record(&NAMESPACE_METADATA)),
        ("spec", Field::Record(&NAMESPACE_SPEC)),
        ("status", Field::Record(&NAMESPACE_STATUS)),
    ],
};

/// Variables of the expressions of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declarations {
    pub(crate) has_params: bool,
    /// True if the expression can create configurations and patches.
    pub(crate) has_patches: bool,
    /// Composed variables, or `None` where none can be used.
    pub(crate) composed: Option<Vec<(String, Type)>>,
}

impl Declarations {
    /// Returns true if object literals can have a type with this name.
    pub(crate) fn has_literal(&self, name: &str) -> bool {
        let is_part = || {
            name.strip_prefix(OBJECT)
                .is_some_and(|path| path.starts_with('.'))
        };
        self.has_patches && (name == PATCH || name == OBJECT || is_part())
    }

    pub(crate) fn find(&self, name: &str) -> Option<Type> {
        match name {
            "object" | "oldObject" => Some(Type::Dyn),
            "request" => Some(Type::Record(&REQUEST)),
            "namespaceObject" => Some(Type::Record(&NAMESPACE)),
            "params" if self.has_params => Some(Type::Dyn),
            COMPOSED => self.composed.clone().map(Type::Composed),
            _ => None,
        }
    }
}
