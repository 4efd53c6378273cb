"""What a running process shows of its inside, to its own user or to an administrator."""

from dynamo.runtime.inspection.inspection import Inspection, InspectionRequest, Row

__all__ = ["Inspection", "InspectionRequest", "Row"]
