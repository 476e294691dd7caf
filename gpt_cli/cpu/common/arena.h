/* An arena: one piece of memory of which buffers are parts, one behind the other, each of whole cache lines.

   The buffers of a workspace are listed in a table, with X(type of an element, name, number of elements) for each. The fields of the
   workspace and the addresses in them both come from the table, so a further buffer is one line:

       #define WORKSPACE_BUFFERS(X) X(float, x, rows * width) X(float, logits, rows * vocab_size)
       typedef struct { WORKSPACE_BUFFERS(BUFFER_FIELD) } Workspace;

   A function that contains WORKSPACE_BUFFERS(TAKE_BUFFER) sets the fields of `to` to parts of `arena`; both are names of its own, as
   are `rows`, `width` and `vocab_size` here. */

typedef struct {
    char *memory; /* NULL: bytes are only counted, and no buffer has an address */
    size_t used;  /* bytes */
} Arena;

static void *arena_alloc(Arena *arena, size_t bytes) {
    char *at = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (bytes + 63) / 64 * 64;
    return at;
}

#define BUFFER_FIELD(type, name, elements) type *name;
#define TAKE_BUFFER(type, name, elements) to->name = arena_alloc(arena, sizeof(type) * (size_t)(elements));
