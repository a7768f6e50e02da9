package bnengine

// Constraint is the grammar that an output must match. The zero value matches everything. A constraint that does not
// compile is refused when the request is submitted, and by Engine.CheckConstraint.
type Constraint struct {
	kind   uint32
	text   string
	schema any
}

// JSONSchema is JSON that is valid under a schema: a json.RawMessage, or a value that encoding/json converts to a
// schema. Properties come in the order of the schema.
func JSONSchema(schema any) Constraint {
	return Constraint{kind: BN_CONSTRAINT_JSON_SCHEMA, schema: schema}
}

// JSONObject is any JSON object.
func JSONObject() Constraint { return Constraint{kind: BN_CONSTRAINT_JSON_OBJECT} }

// Regex is a regular expression in Rust's syntax, without anchors, which the whole output matches.
func Regex(expression string) Constraint {
	return Constraint{kind: BN_CONSTRAINT_REGEX, text: expression}
}

// Lark is a grammar in llguidance's dialect of Lark, whose rule start the output matches.
func Lark(grammar string) Constraint { return Constraint{kind: BN_CONSTRAINT_LARK, text: grammar} }

// GBNF is a grammar in llama.cpp's GBNF, whose rule root the output matches.
func GBNF(grammar string) Constraint { return Constraint{kind: BN_CONSTRAINT_GBNF, text: grammar} }

// in returns the C struct, whose text is copied to memory.
func (c *Constraint) in(memory *arena, flags JSON) (p bn_constraint, err error) {
	p.kind, p.json_flags, p.text = c.kind, uint32(flags), memory.text(c.text)
	if c.kind == BN_CONSTRAINT_JSON_SCHEMA {
		p.text, err = memory.json("JSONSchema", c.schema)
	}
	return p, err
}

// CheckConstraint compiles a constraint, and keeps it compiled for later requests with the same flags.
func (e *Engine) CheckConstraint(constraint Constraint, flags JSON) error {
	var memory arena
	defer memory.free()
	c, err := constraint.in(&memory, flags)
	if err != nil {
		return err
	}
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_engine_check_constraint(ptr, &c, failure)
	})
}

// JSON is the style of JSON in constraints and calls of tools, as BN_JSON_*.
type JSON uint32

// The flags of JSON.
const (
	JSONCompact      JSON = BN_JSON_COMPACT       // no white space between tokens
	JSONFlexible     JSON = BN_JSON_FLEXIBLE      // up to 32 characters of it
	JSONKnownFormats JSON = BN_JSON_KNOWN_FORMATS // unknown formats of a schema are refused
	JSONClosed       JSON = BN_JSON_CLOSED        // objects have only the keys that the schema declares, unless it says otherwise
)
