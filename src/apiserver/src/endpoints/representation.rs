//! Response bodies of objects and lists: plain, as Table, or as PartialObjectMetadata.

use bytes::{BufMut as _, Bytes, BytesMut};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::builtin;
use crate::endpoints::negotiate::{Conversion, MetaVersion};
use crate::endpoints::request::Query;
use crate::engine::ResultObject;
use crate::engine::list::Page;
use crate::object::managed_fields;
use crate::registry::resource::{Origin, Resource, to_bytes};
use crate::status::ApiError;
use rooflet_store::{Record, Revision};

/// Object in a table row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub(crate) fn parse(query: &Query) -> Result<Self, ApiError> {
        match query.get("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

/// Output form of a request.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub resource: &'a Resource,
    pub conversion: Conversion,
    pub include: IncludeObject,
    pub now: Timestamp,
}

impl View<'_> {
    /// Returns the body for a single object.
    pub(crate) fn object(&self, shown: &ResultObject) -> Result<Bytes, ApiError> {
        if self.conversion == Conversion::Object {
            return Ok(match shown {
                ResultObject::Record(record) => self.resource.object_bytes(record),
                ResultObject::Value(value) => to_bytes(&self.resource.external(value.clone())),
            });
        }
        match shown {
            ResultObject::Record(record) => self.converted(&self.resource.view(record), true),
            ResultObject::Value(value) => self.converted(value, true),
        }
    }

    /// Returns the body for an object in working form.
    pub(crate) fn converted(&self, working: &Value, with_columns: bool) -> Result<Bytes, ApiError> {
        match self.conversion {
            Conversion::Object => Ok(to_bytes(&self.resource.external(working.clone()))),
            Conversion::Table(version) => {
                let metadata = json!({"resourceVersion": working["metadata"]["resourceVersion"]});
                let rows = vec![self.row(working, version)];
                Ok(to_bytes(&self.table(version, metadata, rows, with_columns)))
            }
            Conversion::PartialObjectMetadata(version) => Ok(to_bytes(&partial(working, version))),
            Conversion::PartialObjectMetadataList(_) => Err(ApiError::untyped("content is not a list")),
        }
    }

    /// Returns the body for a page of a list.
    pub(crate) fn page(&self, page: &Page) -> Result<Bytes, ApiError> {
        match self.conversion {
            Conversion::Object => Ok(self.plain_list(page)),
            Conversion::Table(version) => {
                let rows = page
                    .records
                    .iter()
                    .map(|record| self.row(&self.resource.view(record), version))
                    .collect();
                Ok(to_bytes(&self.table(version, page_metadata(page), rows, true)))
            }
            Conversion::PartialObjectMetadataList(version) => {
                let items: Vec<Value> = page
                    .records
                    .iter()
                    .map(|record| partial(&record.json(), version))
                    .collect();
                // kube-apiserver writes an empty list as null.
                let items = Some(items).filter(|items| !items.is_empty());
                Ok(to_bytes(&json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": version.api_version(),
                    "metadata": page_metadata(page), "items": items,
                })))
            }
            Conversion::PartialObjectMetadata(_) => Err(ApiError::not_acceptable_because(format!(
                "you requested PartialObjectMetadata, but the requested object is a list (*{})",
                self.go_list_type()
            ))),
        }
    }

    /// Concatenates the stored bytes, without parsing or serialising objects.
    fn plain_list(&self, page: &Page) -> Bytes {
        let resource = self.resource;
        let mut metadata = page_metadata(page);
        if let (Origin::Custom(_), Some(map)) = (&resource.origin, metadata.as_object_mut()) {
            map.entry("continue").or_insert_with(|| json!(""));
        }
        let items: Vec<Bytes> = page
            .records
            .iter()
            .map(|record| resource.item_bytes(record))
            .collect();
        let bytes: usize = items.iter().map(|item| item.len() + 1).sum();
        let mut list = BytesMut::with_capacity(bytes + 256);
        let kinds = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\"",
            resource.list_kind,
            resource.api_version()
        );
        list.put_slice(kinds.as_bytes());
        list.put_slice(b",\"metadata\":");
        list.put_slice(&to_bytes(&metadata));
        list.put_slice(b",\"items\":[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                list.put_u8(b',');
            }
            list.put_slice(item);
        }
        list.put_slice(b"]}");
        list.freeze()
    }

    fn table(&self, version: MetaVersion, metadata: Value, rows: Vec<Value>, with_columns: bool) -> Value {
        let columns = if with_columns {
            self.resource.table.definitions()
        } else {
            Value::Null
        };
        json!({
            "kind": "Table", "apiVersion": version.api_version(), "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn go_list_type(&self) -> String {
        match &self.resource.origin {
            Origin::BuiltIn(_) => format!(
                "{}.{}",
                builtin::go_package(&self.resource.group),
                self.resource.list_kind
            ),
            Origin::Custom(_) => "unstructured.UnstructuredList".to_owned(),
        }
    }

    fn row(&self, working: &Value, version: MetaVersion) -> Value {
        let cells = self.resource.table.cells(working, self.now);
        let object = match self.include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial(working, version),
            IncludeObject::Object => self.resource.external(working.clone()),
        };
        json!({"cells": cells, "object": object})
    }
}

fn partial(working: &Value, version: MetaVersion) -> Value {
    let mut metadata = working.get("metadata").cloned().unwrap_or_else(|| json!({}));
    managed_fields::expand_metadata(&mut metadata);
    json!({"kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": metadata})
}

fn page_metadata(page: &Page) -> Value {
    let mut metadata = Map::new();
    metadata.insert(
        "resourceVersion".to_owned(),
        Value::from(page.version.to_string()),
    );
    if let Some(token) = &page.continue_token {
        metadata.insert("continue".to_owned(), Value::from(token.as_str()));
    }
    if let Some(remaining) = page.remaining {
        metadata.insert("remainingItemCount".to_owned(), Value::from(remaining));
    }
    Value::Object(metadata)
}

/// Returns a page of the objects that deletecollection removed.
pub(crate) fn page_of(records: Vec<std::sync::Arc<Record>>, version: Revision) -> Page {
    Page {
        records,
        version,
        continue_token: None,
        remaining: None,
    }
}
