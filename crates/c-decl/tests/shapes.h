/* What the tests declare, rightly and wrongly. */

#include <stdint.h>
#include <stdio.h>

enum kind { CIRCLE = 1, SQUARE = -2 };
#define FILLED (1 << 4)

union measure {
    uint32_t radius;
    uint64_t side;
};

struct shape {
    enum kind kind;
    union measure measure;
    const char *label;
    int (*draw)(struct shape *shape, unsigned int flags);
    struct {
        uint16_t x, y;
    } at;
    unsigned __int128 left_out;
    uint8_t color[3];
};

/* A newer version, which has another field behind the last one. */
struct canvas {
    struct shape *first;
    int newer;
};

/* A newer version, which has another field before the first one. */
struct calls {
    void (*newer)(void);
    void (*clear)(struct canvas *canvas);
};

struct shape *shape_new(enum kind kind, size_t bytes);
void shape_print(const struct shape *shape, FILE *file);
#define shape_print(shape, file) ((void)(shape), (void)(file))
void reset(void);

/* The same by typedef. */
typedef enum { ROUND = 7 } corner_t;
typedef struct {
    corner_t corner;
} corners_t;
corners_t corners_of(const struct shape *shape);
