//! Where in an object a check stands: a chain on the stack, turned into text only for an error.

/// A node's place, linked to its parent's. Cheap to extend; no allocation until it is printed.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    Root,
    /// A named property.
    Child(&'a Path<'a>, &'a str),
    /// A key of a free-form map.
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub fn child(&'a self, name: &'a str) -> Path<'a> {
        Path::Child(self, name)
    }

    pub fn key(&'a self, name: &'a str) -> Path<'a> {
        Path::Key(self, name)
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    /// apimachinery's field path: `spec.labels[a].x[0]`, `<nil>` for the root.
    pub fn field(&self) -> String {
        let mut out = String::new();
        self.push_field(&mut out);
        if out.is_empty() { "<nil>".to_owned() } else { out }
    }

    fn push_field(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Child(parent, name) => {
                parent.push_field(out);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Key(parent, name) => {
                parent.push_field(out);
                out.push('[');
                out.push_str(name);
                out.push(']');
            }
            Path::Index(parent, index) => {
                parent.push_field(out);
                out.push_str(&format!("[{index}]"));
            }
        }
    }

    /// The path as the OpenAPI validator writes it in its texts: map keys after a dot, empty at the
    /// root.
    pub fn openapi(&self) -> String {
        let mut out = String::new();
        self.push_openapi(&mut out);
        out
    }

    fn push_openapi(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Child(parent, name) => {
                parent.push_openapi(out);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Key(parent, name) => {
                parent.push_openapi(out);
                out.push('.');
                out.push_str(name);
            }
            Path::Index(parent, index) => {
                parent.push_openapi(out);
                out.push_str(&format!("[{index}]"));
            }
        }
    }
}

/// An owned field path, for code that builds paths up front instead of while it recurses.
pub fn join(parent: &str, child: &str) -> String {
    if parent.is_empty() {
        child.to_owned()
    } else {
        format!("{parent}.{child}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_styles_differ_in_map_keys_only() {
        let root = Path::Root;
        let spec = root.child("spec");
        let labels = spec.child("labels");
        let key = labels.key("a");
        let item = key.index(2);
        assert_eq!(item.field(), "spec.labels[a][2]");
        assert_eq!(item.openapi(), "spec.labels.a[2]");
        assert_eq!(root.field(), "<nil>");
        assert_eq!(root.openapi(), "");
    }
}
