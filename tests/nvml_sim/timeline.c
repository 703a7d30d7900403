/* Values that are constant between points, their integrals and means: what all readings derive from. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static const struct point *point_before(const struct device *device, int64_t at_ns)
{
    int low = 0, high = device->point_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (device->points[middle].at_ns <= at_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &device->points[low - 1] : NULL;
}

double value_at(const struct device *device, enum key key, int64_t at_ns)
{
    const struct point *point = point_before(device, at_ns);
    return point ? point->value[key] : 0.0;
}

double integral(const struct device *device, enum key key, int64_t to_ns)
{
    const struct point *point = point_before(device, to_ns);
    return point ? point->sum[key] + point->value[key] * 1e-9 * (double)(to_ns - point->at_ns) : 0.0;
}

double mean(const struct device *device, enum key key, int64_t from_ns, int64_t to_ns)
{
    if (from_ns < 0)
        from_ns = 0;
    if (to_ns <= from_ns)
        return value_at(device, key, to_ns);
    return (integral(device, key, to_ns) - integral(device, key, from_ns)) / (1e-9 * (double)(to_ns - from_ns));
}

const char *append_point(struct device *device, int64_t at_ns, const double *value, const bool *given)
{
    struct point next = {.at_ns = at_ns};
    const struct point *last = device->point_count ? &device->points[device->point_count - 1] : NULL;
    if (at_ns < 0 || (last && at_ns < last->at_ns))
        return "points of a device must be in the order of time, from 0 on";
    for (int key = 0; key < KEYS; key++) {
        next.value[key] = given[key] ? value[key] : last ? last->value[key] : 0.0;
        next.sum[key] = integral(device, key, at_ns);
    }
    uint64_t reasons = (uint64_t)next.value[REASONS];
    next.value[SW_THERMAL] = (reasons & 0x20) != 0;
    next.value[HW_THERMAL] = (reasons & 0x40) != 0;
    if (device->point_count == device->point_room) {
        int room = device->point_room ? 2 * device->point_room : 16;
        struct point *grown = realloc(device->points, (size_t)room * sizeof *grown);
        if (!grown)
            return "out of memory";
        device->points = grown;
        device->point_room = room;
    }
    device->points[device->point_count++] = next;
    return NULL;
}
