//! Variables of the expressions of policies, and the check of an expression.

use std::sync::LazyLock;

use serde_json::Value;

use crate::text;
use rooflet_schema::cel::checker::{Checked, Decl, Environment, Record, Type};
use rooflet_schema::cel::dynamic::COMPOSED;

const AUTHORIZER: Type<'static> = Type::Library("authorization.Authorizer");
const RESOURCE_CHECK: Type<'static> = Type::Library("authorization.ResourceCheck");

/// Result that an expression must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Bool,
    Text,
    TextOrNull,
    /// Configuration of an object.
    Configuration,
    /// Operations of a JSON patch.
    Patches,
}

impl Wanted {
    fn types(self) -> Vec<Type<'static>> {
        let literal = |name: &str| Type::Literal(name.into());
        match self {
            Self::Bool => vec![Type::Bool],
            Self::Text => vec![Type::Text],
            Self::TextOrNull => vec![Type::Text, Type::Null],
            Self::Configuration => vec![literal("Object")],
            Self::Patches => vec![Type::list(literal("JSONPatch"))],
        }
    }

    /// Returns the error for a result of another type.
    fn error(self, found: &Type<'_>) -> Option<String> {
        let types = self.types();
        if types.iter().any(|wanted| wanted == found) {
            return None;
        }
        let expected = match &types[..] {
            [one] => one.to_string(),
            several => {
                let names: Vec<String> = several.iter().map(Type::to_string).collect();
                format!("one of [{}]", names.join(" "))
            }
        };
        Some(format!("must evaluate to {expected} but got {found}"))
    }
}

/// Variables of the expressions of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Declarations {
    has_params: bool,
    /// Composed variables, or `None` where none can be used.
    composed: Option<Record>,
}

impl Declarations {
    /// Creates the declarations of a policy without composed variables.
    pub(crate) fn new(has_params: bool) -> Self {
        Self {
            has_params,
            composed: None,
        }
    }

    /// Allows the use of composed variables.
    pub(crate) fn compose(&mut self) {
        self.composed
            .get_or_insert_with(|| Record::new("kubernetes.variables", &[]));
    }

    /// Declares a composed variable.
    pub(crate) fn declare(&mut self, name: &str, of: Type<'static>) {
        self.compose();
        if let Some(composed) = &mut self.composed {
            composed.declare(name, of);
        }
    }

    /// Checks an expression. The error is the reason why it is rejected.
    pub(crate) fn check(&self, source: &str, wanted: Wanted) -> Result<(), String> {
        let environment = match wanted {
            // Messages cannot depend on permissions.
            Wanted::Text => self.environment(),
            Wanted::Bool | Wanted::TextOrNull => with_authorizer(self.environment()),
            Wanted::Configuration | Wanted::Patches => with_authorizer(self.environment()).with_patches(),
        };
        let checked = Checked::of(source, &environment).map_err(|err| err.to_string())?;
        wanted.error(&checked.result()).map_or(Ok(()), Err)
    }

    /// Checks the expression of a composed variable. Returns its type.
    pub(crate) fn check_variable(&self, source: &str) -> Result<Type<'static>, String> {
        let environment = with_authorizer(self.environment());
        let checked = Checked::of(source, &environment).map_err(|err| err.to_string())?;
        Ok(checked.result().stored())
    }

    fn environment(&self) -> Environment<'_> {
        let environment = base().with("object", Type::Dyn).with("oldObject", Type::Dyn);
        let environment = match self.has_params {
            true => environment.with("params", Type::Dyn),
            false => environment,
        };
        match &self.composed {
            Some(composed) => environment.with(COMPOSED, Type::Record(composed)),
            None => environment,
        }
    }
}

/// Schemas of the objects of expressions.
#[derive(Clone, Copy)]
pub(crate) struct Typed<'a> {
    /// Kind and declaration of the object.
    pub(crate) object: (&'a str, &'a Decl),
    /// Kind and declaration of the parameter, if the policy has one, and if the kind is known.
    pub(crate) params: Option<Option<(&'a str, &'a Decl)>>,
}

impl Typed<'_> {
    /// Checks an expression after the composed variables. Returns the problems.
    pub(crate) fn check(self, source: &str, variables: &[Value]) -> Option<String> {
        let mut composed = Declarations::new(false);
        composed.compose();
        for variable in variables {
            let found = self.compile(text(variable, "expression"), &composed);
            composed.declare(text(variable, "name"), found.unwrap_or(Type::Dyn));
        }
        self.compile(source, &composed).err()
    }

    fn compile(self, source: &str, declared: &Declarations) -> Result<Type<'static>, String> {
        let (kind, decl) = self.object;
        let mut environment = base()
            .with_decl("object", decl, kind)
            .with_decl("oldObject", decl, kind)
            .with("authorizer", AUTHORIZER);
        environment = match self.params {
            Some(Some((kind, decl))) => environment.with_decl("params", decl, kind),
            Some(None) => environment.with("params", Type::Dyn),
            None => environment,
        };
        if let Some(composed) = &declared.composed {
            environment = environment.with(COMPOSED, Type::Record(composed));
        }
        let checked = Checked::of(source, &environment).map_err(|err| err.problems())?;
        Ok(checked.result().stored())
    }
}

/// Returns the declarations that all expressions have.
fn base<'d>() -> Environment<'d> {
    Environment::default()
        .with("request", Type::Record(&REQUEST))
        .with("namespaceObject", Type::Record(&NAMESPACE))
}

fn with_authorizer(environment: Environment<'_>) -> Environment<'_> {
    environment
        .with("authorizer", AUTHORIZER)
        .with("authorizer.requestResource", RESOURCE_CHECK)
}

fn texts() -> Type<'static> {
    Type::list(Type::Text)
}

fn text_map() -> Type<'static> {
    Type::map(Type::Text, Type::Text)
}

static KIND: LazyLock<Record> = LazyLock::new(|| {
    let fields = ["group", "version", "kind"].map(|name| (name, Type::Text));
    Record::new("kubernetes.GroupVersionKind", &fields)
});

static RESOURCE: LazyLock<Record> = LazyLock::new(|| {
    let fields = ["group", "version", "resource"].map(|name| (name, Type::Text));
    Record::new("kubernetes.GroupVersionResource", &fields)
});

static USER: LazyLock<Record> = LazyLock::new(|| {
    let fields = [
        ("username", Type::Text),
        ("uid", Type::Text),
        ("groups", texts()),
        ("extra", Type::map(Type::Text, texts())),
    ];
    Record::new("kubernetes.UserInfo", &fields)
});

static REQUEST: LazyLock<Record> = LazyLock::new(|| {
    let fields = [
        ("kind", Type::Record(&KIND)),
        ("resource", Type::Record(&RESOURCE)),
        ("subResource", Type::Text),
        ("requestKind", Type::Record(&KIND)),
        ("requestResource", Type::Record(&RESOURCE)),
        ("requestSubResource", Type::Text),
        ("name", Type::Text),
        ("namespace", Type::Text),
        ("operation", Type::Text),
        ("userInfo", Type::Record(&USER)),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ];
    Record::new("kubernetes.AdmissionRequest", &fields)
});

static NAMESPACE_METADATA: LazyLock<Record> = LazyLock::new(|| {
    let fields = [
        ("name", Type::Text),
        ("generateName", Type::Text),
        ("namespace", Type::Text),
        ("labels", text_map()),
        ("annotations", text_map()),
        ("UID", Type::Text),
        ("creationTimestamp", Type::Timestamp),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Timestamp),
        ("generation", Type::Int),
        ("resourceVersion", Type::Text),
        ("finalizers", texts()),
    ];
    Record::new("kubernetes.NamespaceMetadata", &fields)
});

static NAMESPACE_SPEC: LazyLock<Record> =
    LazyLock::new(|| Record::new("kubernetes.NamespaceSpec", &[("finalizers", texts())]));

static NAMESPACE_CONDITION: LazyLock<Record> = LazyLock::new(|| {
    let fields = [
        ("status", Type::Text),
        ("type", Type::Text),
        ("lastTransitionTime", Type::Timestamp),
        ("message", Type::Text),
        ("reason", Type::Text),
    ];
    Record::new("kubernetes.NamespaceCondition", &fields)
});

static NAMESPACE_STATUS: LazyLock<Record> = LazyLock::new(|| {
    let fields = [
        ("conditions", Type::list(Type::Record(&NAMESPACE_CONDITION))),
        ("phase", Type::Text),
    ];
    Record::new("kubernetes.NamespaceStatus", &fields)
});

static NAMESPACE: LazyLock<Record> = LazyLock::new(|| {
    let fields = [
        ("metadata", Type::Record(&NAMESPACE_METADATA)),
        ("spec", Type::Record(&NAMESPACE_SPEC)),
        ("status", Type::Record(&NAMESPACE_STATUS)),
    ];
    Record::new("kubernetes.Namespace", &fields)
});
